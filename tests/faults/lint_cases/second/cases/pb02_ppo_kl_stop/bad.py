"""PPO fine-tuning of a token policy against a scripted reward."""
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class PPOConfig:
    iterations: int = 12
    ppo_epochs: int = 4
    minibatch: int = 8
    rollouts: int = 32
    length: int = 12
    clip: float = 0.2
    target_kl: float = 0.02
    lr: float = 5e-3


class Policy(nn.Module):
    def __init__(self, vocab=23, dim=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.body = nn.GRU(dim, dim, batch_first=True)
        self.logits = nn.Linear(dim, vocab)

    def forward(self, tokens):
        hidden, _ = self.body(self.embed(tokens))
        return self.logits(hidden)


def token_logprobs(model, tokens):
    logits = model(tokens[:, :-1])
    return F.log_softmax(logits, -1).gather(-1, tokens[:, 1:, None]).squeeze(-1)


class RolloutWorker:
    def __init__(self, cfg, policy, device):
        self.cfg, self.policy, self.device = cfg, policy, device

    @torch.no_grad()
    def collect(self):
        tokens = torch.randint(0, 23, (self.cfg.rollouts, 1), device=self.device)
        for _ in range(self.cfg.length):
            probs = self.policy(tokens)[:, -1].softmax(-1)
            tokens = torch.cat([tokens, torch.multinomial(probs, 1)], dim=1)
        reward = (tokens[:, 1:] % 5 == 0).float().mean(1)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
        return tokens, token_logprobs(self.policy, tokens), advantage, reward


class KLStop:
    def __init__(self, target):
        self.limit = 1.5 * target

    def exceeded(self, old, new):
        ratio = (new - old).detach()
        approx_kl = ((ratio.exp() - 1) - ratio).mean()  # RELATED: source
        return bool(approx_kl > self.limit)


class PPOTrainer:
    def __init__(self, cfg, device):
        self.cfg, self.device = cfg, device
        self.model = DDP(Policy().to(device))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.worker = RolloutWorker(cfg, self.model.module, device)
        self.kl_stop = KLStop(cfg.target_kl)

    def minibatches(self, *tensors):
        order = torch.randperm(len(tensors[0]), device=self.device)
        for rows in order.split(self.cfg.minibatch):
            yield tuple(t[rows] for t in tensors)

    def policy_step(self, new, old, advantage):
        ratio = (new - old).exp()
        weight = advantage[:, None]
        clipped = ratio.clamp(1 - self.cfg.clip, 1 + self.cfg.clip)
        loss = -torch.min(ratio * weight, clipped * weight).mean()
        self.optimizer.zero_grad()
        loss.backward()  # RELATED: hidden-collective
        self.optimizer.step()

    def optimise(self, tokens, old, advantage):
        for _ in range(self.cfg.ppo_epochs):
            for t, o, a in self.minibatches(tokens, old, advantage):
                new = token_logprobs(self.model, t)
                if self.kl_stop.exceeded(o, new):  # RELATED: guard
                    return  # EXPECT: local-early-exit
                self.policy_step(new, o, a)

    def mean_reward(self, reward):
        total = torch.stack([reward.sum(), torch.tensor(float(len(reward)), device=self.device)])
        dist.all_reduce(total)
        return (total[0] / total[1]).item()

    def train(self):
        for it in range(self.cfg.iterations):
            tokens, old, advantage, reward = self.worker.collect()
            self.optimise(tokens, old, advantage)
            mean = self.mean_reward(reward)
            if dist.get_rank() == 0:
                print(f"iteration {it} reward {mean:.3f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    dev = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(7 + dist.get_rank())
    PPOTrainer(PPOConfig(), dev).train()
    dist.destroy_process_group()
