"""On-policy fine-tuning of a tiny language model whose blocks are sharded with fully_shard."""
import logging
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from rollout import HybridRollout, SamplingParams, gather_lengths

log = logging.getLogger("grpo")


@dataclass
class Config:
    vocab: int = 16
    dim: int = 32
    layers: int = 2
    prompts_per_rank: int = 3
    prompt_len: int = 4
    iterations: int = 4
    lr: float = 1e-2
    sampling: SamplingParams = field(default_factory=SamplingParams)


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mix = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        steps = torch.arange(1, x.shape[1] + 1)[None, :, None]
        causal_mean = self.mix(self.norm(x)).cumsum(1) / steps
        return x + self.mlp(causal_mean)


class TinyLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab, cfg.dim)
        self.blocks = nn.ModuleList(Block(cfg.dim) for _ in range(cfg.layers))
        self.head = nn.Linear(cfg.dim, cfg.vocab)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build_policy(cfg):
    torch.manual_seed(0)
    policy = TinyLM(cfg)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    for block in policy.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=True)
    fully_shard(policy, mesh=mesh)
    return policy


class PromptSource:
    def __init__(self, cfg, rank):
        self.cfg = cfg
        self.generator = torch.Generator().manual_seed(100 + rank)

    def __iter__(self):
        shape = (self.cfg.prompts_per_rank, self.cfg.prompt_len)
        for _ in range(self.cfg.iterations):
            yield torch.randint(2, self.cfg.vocab, shape, generator=self.generator)


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank = dist.get_rank()
        self.policy = build_policy(cfg)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=cfg.lr)
        self.rollout = HybridRollout(self.policy, cfg.sampling, seed=1 + self.rank)

    @property
    def is_main(self):
        return self.rank == 0

    def advantages(self, state):
        lens = state.response_mask().sum(1).float()
        rewards = -(lens - 8).abs()
        return rewards - rewards.mean()

    def update(self, state):
        logits = self.policy(state.tokens[:, :-1])
        logp = logits.log_softmax(-1).gather(-1, state.tokens[:, 1:, None]).squeeze(-1)
        logp = logp[:, state.prompt_len - 1:]
        mask = state.response_mask().float()
        loss = -(self.advantages(state)[:, None] * logp * mask).sum() / mask.sum().clamp(min=1)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self):
        for it, prompts in enumerate(PromptSource(self.cfg, self.rank)):
            state = self.rollout.generate(prompts)
            mean_len = gather_lengths(state)
            loss = self.update(state)
            if self.is_main:
                log.info("iter %d len %.2f loss %.4f", it, mean_len, loss)


def main():
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    Trainer(Config()).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
