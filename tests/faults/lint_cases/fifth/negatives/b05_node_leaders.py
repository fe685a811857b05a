import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn


class Hierarchy:
    """A group per node and one of the first ranks of the nodes. All ranks create all groups."""

    def __init__(self):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.local_size = int(os.environ["LOCAL_WORLD_SIZE"])
        torch.cuda.set_device(self.local_rank)
        dist.init_process_group("nccl")
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.node = self.rank // self.local_size
        self.leader = self.node * self.local_size
        self.node_group = None
        for first in range(0, self.world, self.local_size):
            group = dist.new_group(list(range(first, first + self.local_size)))
            if first == self.leader:
                self.node_group = group
        self.leader_group = dist.new_group(list(range(0, self.world, self.local_size)))

    @property
    def is_leader(self):
        return self.rank == self.leader

    def average_(self, tensor):
        dist.reduce(tensor, dst=self.leader, group=self.node_group)
        if self.is_leader:
            dist.all_reduce(tensor, group=self.leader_group)
            tensor /= self.world
        dist.broadcast(tensor, src=self.leader, group=self.node_group)
        return tensor


class LocalSGD:
    """Steps inside the node each time, over the nodes only every `period` steps."""

    def __init__(self, model, hierarchy, lr, period):
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.inner = torch.optim.SGD(self.params, lr=lr, momentum=0.9)
        self.h = hierarchy
        self.period = period
        self.steps = 0

    def zero_grad(self):
        self.inner.zero_grad(set_to_none=True)

    @torch.no_grad()
    def step(self):
        for p in self.params:
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, group=self.h.node_group)
        self.inner.step()
        self.steps += 1
        if self.steps % self.period == 0:
            for p in self.params:
                self.h.average_(p.data)


def timed(fn, *args):
    start = time.perf_counter()
    result = fn(*args)
    torch.cuda.synchronize()
    return result, time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--period", type=int, default=16)
    args = parser.parse_args()
    hierarchy = Hierarchy()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
    optimizer = LocalSGD(model, hierarchy, lr=0.05, period=args.period)
    generator = torch.Generator("cuda").manual_seed(1 + hierarchy.rank)
    seconds = 0.0
    for step in range(args.steps):
        x = torch.randn(64, 256, generator=generator, device="cuda")
        loss = (model(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        _, spent = timed(optimizer.step)
        seconds += spent
        if (step + 1) % 200 == 0:
            shown = hierarchy.average_(loss.detach().clone())
            if hierarchy.rank == 0:
                print(f"step {step + 1} loss {shown.item():.4f}")
            if hierarchy.is_leader:
                print(f"node {hierarchy.node}: {seconds / (step + 1) * 1e3:.2f} ms per update")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
