import argparse
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from groups import Topology, create_on_leader_and_share


class CopyToGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class ReduceFromGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class ParallelMLP(nn.Module):
    """Hidden units are divided over the tensor group."""

    def __init__(self, dim, hidden, group):
        super().__init__()
        part = hidden // dist.get_world_size(group)
        self.group = group
        self.up = nn.Linear(dim, part)
        self.down = nn.Linear(part, dim, bias=False)

    def forward(self, x):
        h = F.gelu(self.up(CopyToGroup.apply(x, self.group)))
        return x + ReduceFromGroup.apply(self.down(h), self.group)


def sync_data_parallel(model, group):
    size = dist.get_world_size(group)
    for param in model.parameters():
        dist.all_reduce(param.grad, group=group)
        param.grad.div_(size)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensor-size", type=int, default=2)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    topology = Topology(args.tensor_size)
    tensor_rank = dist.get_rank(topology.tensor_group)
    torch.manual_seed(100 + tensor_rank)
    model = ParallelMLP(args.dim, args.hidden, topology.tensor_group).to(topology.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    data_seed = create_on_leader_and_share(topology.tensor_group, lambda: random.getrandbits(31))
    gen = torch.Generator(device=topology.device).manual_seed(data_seed)
    for step in range(args.steps):
        x = torch.randn(args.batch_size, args.dim, device=topology.device, generator=gen)
        loss = F.mse_loss(model(x), x.roll(1, dims=-1))
        optimizer.zero_grad()
        loss.backward()
        sync_data_parallel(model, topology.data_group)
        optimizer.step()
        if step % 100 == 0:
            shown = loss.detach().clone()
            dist.all_reduce(shown, group=topology.data_group)
            if topology.rank == 0:
                print(f"step {step} loss {shown.item() / dist.get_world_size(topology.data_group):.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
