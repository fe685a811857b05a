import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from muon import ShardedMuon
from parallel import ParallelState


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up = nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(F.layer_norm(x, x.shape[-1:]))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shard-size", type=int, default=4)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=0.02)
    args = parser.parse_args()

    state = ParallelState(args.shard_size)
    torch.manual_seed(0)
    net = nn.Sequential(*[Block(args.dim) for _ in range(args.depth)]).to(state.device)
    model = DDP(net, device_ids=[state.device.index])
    optimizer = ShardedMuon(net.parameters(), state, lr=args.lr)
    gen = torch.Generator(device=state.device).manual_seed(1 + state.rank)

    for step in range(args.steps):
        clean = torch.randn(args.batch_size, args.dim, device=state.device, generator=gen)
        noise = torch.randn(args.batch_size, args.dim, device=state.device, generator=gen)
        t = torch.rand(args.batch_size, 1, device=state.device, generator=gen)
        loss = F.mse_loss(model((1 - t) * clean + t * noise), noise - clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if state.rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
