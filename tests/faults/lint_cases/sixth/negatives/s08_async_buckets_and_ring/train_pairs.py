import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from overlap import OverlappedGradients, ring_negatives


class Tower(nn.Module):
    def __init__(self, features, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


def pair_loss(left, right, hops, temperature):
    keys = torch.cat([right, *ring_negatives(right, hops)])
    return F.cross_entropy(left @ keys.t() / temperature, torch.arange(len(left), device=left.device))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    for name, value in (("features", 512), ("dim", 256), ("batch", 128), ("accumulate", 2), ("hops", 3), ("epochs", 10)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--temperature", type=float, default=0.07)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(21)
    towers = nn.ModuleList([Tower(args.features, args.dim) for _ in range(2)]).cuda()
    for p in towers.parameters():
        dist.broadcast(p.data, src=0)
    sync = OverlappedGradients(towers.parameters(), 4 * 2 ** 20)
    optimizer = torch.optim.AdamW(towers.parameters(), lr=1e-4)
    data = TensorDataset(*torch.load(args.data, map_location="cpu"))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, (a, b) in enumerate(loader, 1):
            boundary = step % args.accumulate == 0 or step == len(loader)
            sync.enabled = boundary
            loss = pair_loss(towers[0](a.cuda()), towers[1](b.cuda()), args.hops, args.temperature)
            (loss / args.accumulate).backward()
            if boundary:
                sync.finish()
                optimizer.step()
                optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(epoch, loss.item())
            torch.save(towers.state_dict(), "towers.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
