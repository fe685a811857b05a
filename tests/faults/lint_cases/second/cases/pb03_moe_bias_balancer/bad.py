"""Mixture-of-experts language model with auxiliary-loss-free expert balancing."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB, DIM, EXPERTS = 61, 32, 8


class ExpertLoad:
    """Tokens that each expert took since the last time it was read."""

    def __init__(self, experts):
        self.experts = experts
        self.counts = torch.zeros(experts)

    def add(self, choice):
        self.counts += torch.bincount(choice.reshape(-1).cpu(), minlength=self.experts).float()  # RELATED: source

    @property
    def violation(self):
        mean = self.counts.mean().clamp(min=1.0)
        return ((self.counts.max() - mean) / mean).item()

    def clear(self):
        self.counts.zero_()


class Router(nn.Module):
    def __init__(self, dim, experts, topk=2):
        super().__init__()
        self.gate = nn.Linear(dim, experts, bias=False)
        self.topk = topk
        self.register_buffer("bias", torch.zeros(experts))
        self.load = ExpertLoad(experts)

    def forward(self, x):
        scores = self.gate(x).sigmoid()
        choice = (scores + self.bias).topk(self.topk, dim=-1).indices
        weight = scores.gather(-1, choice)
        if self.training:
            self.load.add(choice.detach())
        return choice, weight / weight.sum(-1, keepdim=True)


class MoEBlock(nn.Module):
    def __init__(self, dim, experts):
        super().__init__()
        self.router = Router(dim, experts)
        self.up = nn.Parameter(torch.randn(experts, dim, dim * 2) * 0.05)
        self.down = nn.Parameter(torch.randn(experts, dim * 2, dim) * 0.05)

    def forward(self, x):
        choice, weight = self.router(x)
        hidden = F.gelu(torch.einsum("btd,edh->bteh", x, self.up))
        every = torch.einsum("bteh,ehd->bted", hidden, self.down)
        picked = every.gather(2, choice[..., None].expand(*choice.shape, x.shape[-1]))
        return x + (picked * weight[..., None]).sum(2)


class MoELM(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList([MoEBlock(DIM, EXPERTS) for _ in range(layers)])
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class BiasBalancer:
    def __init__(self, model, tolerance=0.35, rate=1e-2):
        self.routers = [m for m in model.modules() if isinstance(m, Router)]
        self.tolerance, self.rate = tolerance, rate

    def _global_counts(self, router):
        counts = router.load.counts.to(router.bias.device)
        dist.all_reduce(counts)  # RELATED: hidden-collective
        return counts

    @torch.no_grad()
    def _adjust(self, router):
        counts = self._global_counts(router)
        router.bias += self.rate * torch.sign(counts.mean() - counts)

    def step(self):
        for router in self.routers:
            if router.load.violation > self.tolerance:  # RELATED: guard
                self._adjust(router)  # EXPECT: local-data-branch
            router.load.clear()


def batches(rank, device, steps=40):
    gen = torch.Generator().manual_seed(500 + rank)
    for _ in range(steps):
        yield torch.randint(0, VOCAB, (2, 17), generator=gen).to(device)


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    model = DDP(MoELM().to(device))
    balancer = BiasBalancer(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for ids in batches(dist.get_rank(), device):
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        balancer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
