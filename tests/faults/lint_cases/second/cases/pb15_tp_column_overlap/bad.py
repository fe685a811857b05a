"""Tensor-parallel MLP language model; the backward overlaps communication with weight gradients."""
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM, HIDDEN, CONTEXT = 59, 64, 256, 6


@dataclass
class TensorParallel:
    group: object = None

    @property
    def size(self):
        return dist.get_world_size(self.group)

    @property
    def rank(self):
        return dist.get_rank(self.group)

    def shard(self, full, dim):
        return full.chunk(self.size, dim)[self.rank].clone()

    def begin_reduce(self, tensor):
        """Sum over the group while the caller computes something else."""
        return dist.all_reduce(tensor, group=self.group, async_op=True)

    def reduce(self, tensor):
        dist.all_reduce(tensor, group=self.group)
        return tensor


class ColumnLinearFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, tp):
        ctx.save_for_backward(x, weight)
        ctx.tp = tp
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        grad_input = grad_output @ weight
        ctx.tp.begin_reduce(grad_input)  # EXPECT: missing-wait
        grad_weight = grad_output.flatten(0, -2).t() @ x.flatten(0, -2)
        return grad_input, grad_weight, None


class RowReduceFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial, tp):
        return tp.reduce(partial.clone())

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None


class ColumnParallelLinear(nn.Module):
    def __init__(self, full, tp):
        super().__init__()
        self.tp = tp
        self.weight = nn.Parameter(tp.shard(full, 0))

    def forward(self, x):
        return ColumnLinearFunction.apply(x, self.weight, self.tp)


class RowParallelLinear(nn.Module):
    def __init__(self, full, tp):
        super().__init__()
        self.tp = tp
        self.weight = nn.Parameter(tp.shard(full, 1))

    def forward(self, x):
        return RowReduceFunction.apply(x @ self.weight.t(), self.tp)


class ParallelMLP(nn.Module):
    def __init__(self, tp):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.up = ColumnParallelLinear(torch.randn(HIDDEN, DIM) * DIM**-0.5, tp)
        self.down = RowParallelLinear(torch.randn(DIM, HIDDEN) * HIDDEN**-0.5, tp)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class WindowLM(nn.Module):
    def __init__(self, tp, layers=3):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.squeeze = nn.Linear(CONTEXT * DIM, DIM)
        self.layers = nn.ModuleList([ParallelMLP(tp) for _ in range(layers)])
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, windows):
        x = self.squeeze(self.embed(windows).flatten(-2))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def windows(tokens, count, gen):
    starts = torch.randint(0, len(tokens) - CONTEXT - 1, (count,), generator=gen)
    rows = starts[:, None] + torch.arange(CONTEXT + 1)
    return tokens[rows]


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(21)  # one model and one batch, shared by the tensor-parallel group
    model = WindowLM(TensorParallel()).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    tokens = (torch.arange(5000) ** 2 // 7) % VOCAB
    gen = torch.Generator().manual_seed(2)
    for step in range(150):
        rows = windows(tokens, 64, gen).to(device)
        loss = F.cross_entropy(model(rows[:, :-1]), rows[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
