"""The partitions of a graph hold different numbers of training nodes; the rank with the smallest one runs out of batches first.

In the style of a distributed GraphSAGE example with neighbor sampling on a partitioned graph.
"""
# case: processes=3 ending=hang causes=uneven-inputs,collective-mismatch,mismatched-operation,rank-missing-collective ranks=2 framework=ddp

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Partition:
    """The nodes that one rank owns, with their neighbors; communities are not cut, so the sizes differ."""

    def __init__(self, part, parts, communities=11, nodes_per_community=64, degree=8, features=16):
        g = torch.Generator().manual_seed(7)
        mine = [c for c in range(communities) if c % parts == part]
        n = communities * nodes_per_community
        self.x = torch.randn(n, features, generator=g)
        self.y = self.x[:, :4].argmax(1)
        self.neighbors = torch.randint(0, n, (n, degree), generator=g)
        self.train_nodes = torch.cat([torch.arange(c * nodes_per_community, (c + 1) * nodes_per_community) for c in mine])


class NeighborSampler:
    def __init__(self, part, fanout, batch_size):
        self.part, self.fanout, self.batch_size = part, fanout, batch_size

    def __len__(self):
        return -(-len(self.part.train_nodes) // self.batch_size)

    def __iter__(self):
        order = self.part.train_nodes[torch.randperm(len(self.part.train_nodes))]
        for seeds in order.split(self.batch_size):
            columns = torch.randperm(self.part.neighbors.size(1))[: self.fanout]
            yield seeds, self.part.neighbors[seeds][:, columns]


class SAGE(nn.Module):
    def __init__(self, features=16, hidden=32, classes=4):
        super().__init__()
        self.own, self.around = nn.Linear(features, hidden), nn.Linear(features, hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x, x_neighbors):
        return self.out(F.relu(self.own(x) + self.around(x_neighbors.mean(1))))


@torch.no_grad()
def accuracy(model, part):
    logits = model(part.x, part.x[part.neighbors])
    return (logits.argmax(1) == part.y).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    part = Partition(rank, world)
    loader = NeighborSampler(part, fanout=4, batch_size=args.batch_size)
    print(f"rank {rank}: {len(part.train_nodes)} nodes, {len(loader)} batches", flush=True)
    model = DDP(SAGE())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(args.epochs):
        for seeds, neighbors in loader:  # ALSO
            loss = F.cross_entropy(model(part.x[seeds], part.x[neighbors]), part.y[seeds])
            optimizer.zero_grad()
            loss.backward()  # GUILTY
            optimizer.step()
        dist.barrier()  # ALSO
        if rank == 0:
            score = accuracy(model.module, part)
            print(f"epoch {epoch} loss {loss.item():.3f} accuracy {score:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
