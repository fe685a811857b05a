import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, mask):
        h = self.norm1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, vocab, dim, heads, depth):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(depth))
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        length = ids.size(1)
        mask = torch.ones(length, length, dtype=torch.bool, device=ids.device).triu(1)
        x = self.tok(ids)
        for layer in self.layers:
            x = layer(x, mask)
        return self.out(x)


class FullFinetuneRecipe:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank = dist.get_rank()
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        mesh = init_device_mesh("cuda", (dist.get_world_size(),))
        torch.manual_seed(cfg.seed)
        self.model = Decoder(cfg.vocab, cfg.dim, cfg.heads, cfg.depth).to(self.device)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in self.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(self.model, mesh=mesh, mp_policy=policy)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, fused=True)
        self.gen = torch.Generator(device=self.device).manual_seed(cfg.seed + 1 + self.rank)

    def save_checkpoint(self, step):
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(self.model, options=options)
        if self.rank == 0:
            os.makedirs(self.cfg.output_dir, exist_ok=True)
            torch.save(state, os.path.join(self.cfg.output_dir, f"model_{step}.pt"))
        dist.barrier()

    def train(self):
        for step in range(1, self.cfg.max_steps + 1):
            shape = (self.cfg.batch_size, self.cfg.seq_len + 1)
            ids = torch.randint(0, self.cfg.vocab, shape, device=self.device, generator=self.gen)
            logits = self.model(ids[:, :-1])
            loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            grad_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=self.cfg.clip_grad_norm)
            grad_norm = grad_norm.full_tensor()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            if step % self.cfg.log_every == 0:
                running = loss.detach().clone()
                dist.all_reduce(running, op=dist.ReduceOp.AVG)
                if self.rank == 0:
                    print(f"step {step} loss {running.item():.4f} grad norm {grad_norm.item():.4f}")
            if step % self.cfg.save_every == 0:
                self.save_checkpoint(step)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", default="ft")
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--clip-grad-norm", type=float, default=1.0)
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--max-steps", type=int, default=2000)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    cli = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    FullFinetuneRecipe(cli).train()
    dist.destroy_process_group()
