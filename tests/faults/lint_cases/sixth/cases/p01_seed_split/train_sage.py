import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from sampling import CSRGraph, NodeBatchCollator, seeds_for_process


class SAGE(nn.Module):
    def __init__(self, in_feats, hidden, n_classes):
        super().__init__()
        self.self_lin = nn.Linear(in_feats, hidden)
        self.neigh_lin = nn.Linear(in_feats, hidden)
        self.out = nn.Linear(hidden, n_classes)

    def forward(self, x, neighbors):
        h = F.relu(self.self_lin(x) + self.neigh_lin(neighbors.mean(dim=1)))
        return self.out(h)


def build_data(args):
    gen = torch.Generator().manual_seed(args.seed)
    graph = CSRGraph.random(args.num_nodes, 12, gen)
    features = torch.randn(args.num_nodes, args.in_feats, generator=gen)
    labels = torch.randint(0, args.n_classes, (args.num_nodes,), generator=gen)
    train_mask = torch.rand(args.num_nodes, generator=gen) < 0.4
    return graph, features, labels, train_mask.nonzero(as_tuple=True)[0]


def run(args):
    dist.init_process_group("nccl")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)

    graph, features, labels, train_nid = build_data(args)
    train_nid = seeds_for_process(train_nid, rank, world_size)
    torch.manual_seed(args.seed + rank)

    loader = DataLoader(
        train_nid,
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=False,
        collate_fn=NodeBatchCollator(graph, features, labels, args.fanout),
        num_workers=args.num_workers,
    )

    model = DDP(SAGE(args.in_feats, args.hidden, args.n_classes).to(device), device_ids=[device.index])
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    for epoch in range(args.num_epochs):
        model.train()
        for step, (x, neighbors, y) in enumerate(loader):
            x, neighbors, y = x.to(device), neighbors.to(device), y.to(device)
            loss = F.cross_entropy(model(x, neighbors), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and step % args.log_every == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
        dist.barrier()

    if rank == 0:
        torch.save(model.module.state_dict(), args.out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser("multi-gpu sampling")
    parser.add_argument("--num-nodes", type=int, default=10007)
    parser.add_argument("--in-feats", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--n-classes", type=int, default=16)
    parser.add_argument("--num-epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--fanout", type=int, default=10)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", default="sage.pt")
    run(parser.parse_args())
