import argparse
import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.experimental import context_parallel

from parallel import ParallelDims, dist_max, dist_mean


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        att = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(att.transpose(1, 2).reshape(b, s, d))
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self, vocab, dim, layers):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList([Block(dim, 8) for _ in range(layers)])
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.tok(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.dims = ParallelDims(args.dp, args.cp)
        self.mesh = self.dims.build_mesh()
        torch.manual_seed(args.seed)
        model = Model(args.vocab, args.dim, args.layers).cuda()
        for layer in model.layers:
            fully_shard(layer, mesh=self.mesh["dp_cp"])
        self.model = fully_shard(model, mesh=self.mesh["dp_cp"])
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.losses = []

    def batches(self):
        gen = torch.Generator().manual_seed(self.mesh["dp"].get_local_rank())
        for _ in range(self.args.steps):
            tokens = torch.randint(0, self.args.vocab, (self.args.batch, self.args.seq + 1), generator=gen)
            yield tokens[:, :-1].contiguous().cuda(), tokens[:, 1:].contiguous().cuda()

    def split_sequence(self, ids, labels):
        if not self.dims.cp_enabled:
            return contextlib.nullcontext()
        return context_parallel(self.mesh["cp"], buffers=[ids, labels], buffer_seq_dims=[1, 1],
                                no_restore_buffers={ids, labels})

    def log(self, step):
        avg, peak = sum(self.losses) / len(self.losses), max(self.losses)
        if self.dims.dp_enabled or self.dims.cp_enabled:
            avg, peak = dist_mean(avg, self.mesh["dp"]), dist_max(peak, self.mesh["dp"])
        self.losses.clear()
        if dist.get_rank() == 0:
            print(f"step {step} loss {avg:.4f} max {peak:.4f}")

    def run(self):
        for step, (ids, labels) in enumerate(self.batches(), 1):
            with self.split_sequence(ids, labels):
                loss = F.cross_entropy(self.model(ids).flatten(0, 1), labels.flatten())
                loss.backward()
            self.optim.step()
            self.optim.zero_grad()
            self.losses.append(loss.item())
            if step % self.args.log_every == 0:
                self.log(step)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    for name, default in (("dp", 2), ("cp", 2), ("vocab", 4096), ("dim", 512), ("layers", 4), ("batch", 2),
                          ("seq", 4096), ("steps", 1000), ("log-every", 10), ("seed", 0)):
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--lr", type=float, default=3e-4)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    Trainer(p.parse_args()).run()
    dist.destroy_process_group()
