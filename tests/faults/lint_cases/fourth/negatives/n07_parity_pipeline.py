import argparse
import os

import torch
import torch.distributed as dist
from torch import nn


class Neighbour:
    """Blocking exchange along a chain of ranks: even ranks send first, odd ranks receive first."""

    def __init__(self, device):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.device = device
        self.even = self.rank % 2 == 0

    def exchange(self, peer, outgoing):
        incoming = torch.empty_like(outgoing)
        if self.even:
            dist.send(outgoing, dst=peer)
            dist.recv(incoming, src=peer)
        else:
            dist.recv(incoming, src=peer)
            dist.send(outgoing, dst=peer)
        return incoming

    def swap_edges(self, left, right):
        from_left, from_right = torch.zeros_like(left), torch.zeros_like(right)
        for phase in (0, 1):
            peer = self.rank + 1 if self.rank % 2 == phase else self.rank - 1
            if not 0 <= peer < self.world:
                continue
            if peer > self.rank:
                from_right = self.exchange(peer, right)
            else:
                from_left = self.exchange(peer, left)
        return from_left, from_right


class Diffusion:
    def __init__(self, cells, neighbour):
        self.neighbour = neighbour
        generator = torch.Generator(device=neighbour.device).manual_seed(neighbour.rank)
        self.u = torch.rand(cells, device=neighbour.device, generator=generator)
        self.kernel = torch.tensor([[[0.25, 0.5, 0.25]]], device=neighbour.device)

    def step(self):
        left, right = self.neighbour.swap_edges(self.u[:1].clone(), self.u[-1:].clone())
        padded = torch.cat([left, self.u, right])
        self.u = nn.functional.conv1d(padded[None, None], self.kernel)[0, 0]

    def total(self):
        total = self.u.sum()
        dist.reduce(total, dst=0)
        return total.item() if self.neighbour.rank == 0 else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cells", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    solver = Diffusion(args.cells, Neighbour(torch.device("cuda", local_rank)))
    for step in range(args.steps):
        solver.step()
        if step % 50 == 0:
            total = solver.total()
            if total is not None:
                print(f"step {step} total {total:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
