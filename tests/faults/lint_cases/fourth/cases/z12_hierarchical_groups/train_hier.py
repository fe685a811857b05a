import argparse
import os

import torch
import torch.distributed as dist
from torch import nn

from topology import Topology


class HierarchicalReducer:
    def __init__(self, model, topology):
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.topology = topology

    @torch.no_grad()
    def broadcast_parameters(self):
        for p in self.params:
            dist.broadcast(p, src=0)

    @torch.no_grad()
    def reduce(self):
        flat = torch.cat([p.grad.flatten() for p in self.params])
        dist.all_reduce(flat, group=self.topology.intra)
        dist.all_reduce(flat, group=self.topology.inter)
        flat /= self.topology.world_size
        offset = 0
        for p in self.params:
            p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))
            offset += p.numel()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    topology = Topology(int(os.environ["LOCAL_WORLD_SIZE"]))
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device)
    reducer = HierarchicalReducer(model, topology)
    reducer.broadcast_parameters()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    generator = torch.Generator(device=device).manual_seed(topology.rank)
    for step in range(args.steps):
        x = torch.randn(64, 256, device=device, generator=generator)
        y = torch.randint(0, 10, (64,), device=device, generator=generator)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        reducer.reduce()
        optimizer.step()
        if step % 100 == 0 and topology.rank == 0:
            print(f"step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
