"""Switch-style mixture of experts whose capacity factor grows while tokens are dropped anywhere."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB, DIM, EXPERTS = 47, 32, 4


class CapacityState:
    def __init__(self, factor=1.0, step=0.1, ceiling=2.0):
        self.factor, self.step, self.ceiling = factor, step, ceiling
        self.dropped = torch.zeros(EXPERTS)

    def limit(self, tokens):
        return max(1, int(self.factor * tokens / EXPERTS))

    def note(self, counts, limit):
        self.dropped += (counts.cpu() - limit).clamp(min=0)

    @property
    def overflowed(self):
        vote = (self.dropped.sum() > 0).float().reshape(1).to(self.device)
        dist.all_reduce(vote, op=dist.ReduceOp.MAX)
        return bool(vote.item())

    @property
    def device(self):
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    def widen(self):
        dropped = self.dropped.to(self.device)
        dist.all_reduce(dropped)
        self.factor = min(self.ceiling, self.factor + self.step)
        return dropped

    def reset(self):
        self.dropped.zero_()


class SwitchFFN(nn.Module):
    def __init__(self, capacity):
        super().__init__()
        self.gate = nn.Linear(DIM, EXPERTS, bias=False)
        self.w1 = nn.Parameter(torch.randn(EXPERTS, DIM, 2 * DIM) * 0.1)
        self.w2 = nn.Parameter(torch.randn(EXPERTS, 2 * DIM, DIM) * 0.1)
        self.capacity = capacity

    def forward(self, x):
        flat = x.flatten(0, 1)
        probs = self.gate(flat).softmax(-1)
        weight, choice = probs.max(-1)
        onehot = F.one_hot(choice, EXPERTS)
        limit = self.capacity.limit(len(flat))
        place = (onehot.cumsum(0) * onehot).sum(-1)
        if self.training:
            self.capacity.note(onehot.sum(0), limit)
        keep = (place <= limit).float() * weight
        every = torch.einsum("neh,ehd->ned", F.gelu(torch.einsum("nd,edh->neh", flat, self.w1)), self.w2)
        mine = (every * onehot[..., None]).sum(1)
        return x + (mine * keep[:, None]).view_as(x)


class SwitchLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.capacities = [CapacityState() for _ in range(2)]
        self.layers = nn.ModuleList([SwitchFFN(c) for c in self.capacities])
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class CapacityCallback:
    def __init__(self, model, every=4):
        self.capacities, self.every = model.capacities, every

    def _tune(self, depth, capacity):
        if capacity.overflowed:
            dropped = capacity.widen()
            if dist.get_rank() == 0:
                print(f"layer {depth}: {int(dropped.sum())} dropped, factor now {capacity.factor:.1f}", flush=True)
        capacity.reset()

    def after_step(self, step):
        if (step + 1) % self.every == 0:
            for depth, capacity in enumerate(self.capacities):
                self._tune(depth, capacity)


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    net = SwitchLM().to(device)
    model, callback = DDP(net), CapacityCallback(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(80 + dist.get_rank())
    for step in range(40):
        ids = torch.randint(0, VOCAB, (4, 17), generator=gen).to(device)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        callback.after_step(step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
