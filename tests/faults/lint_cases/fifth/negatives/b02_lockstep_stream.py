import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset


class ShardStream(IterableDataset):
    """Whole shards per process; the shards have different lengths."""

    def __init__(self, root, rank, world_size):
        self.shards = sorted(Path(root).glob("*.jsonl"))[rank::world_size]

    def __iter__(self):
        for shard in self.shards:
            with shard.open() as lines:
                for line in lines:
                    record = json.loads(line)
                    yield torch.tensor(record["x"]), torch.tensor(record["y"])


class Lockstep:
    """Yields batches until all processes are out of data; who is out early repeats with weight 0."""

    def __init__(self, loader, spare, device):
        self.loader = loader
        self.spare = spare
        self.device = device

    def __iter__(self):
        batches = iter(self.loader)
        while True:
            batch = next(batches, None)
            has_data = torch.tensor([batch is not None], dtype=torch.int, device=self.device)
            dist.all_reduce(has_data, op=dist.ReduceOp.MAX)
            if not has_data.item():
                return
            if batch is None:
                yield (*self.spare, 0.0)
            else:
                yield (*batch, 1.0)


class Regressor(nn.Module):
    def __init__(self, features, width=256):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x)[:, 0]


def train_epoch(model, batches, optimizer, device):
    model.train()
    sums = torch.zeros(2, device=device)
    for x, y, weight in batches:
        x, y = x.to(device), y.to(device)
        total = torch.tensor(weight * len(y), device=device)
        dist.all_reduce(total)
        loss = weight * (model(x) - y).pow(2).sum() * dist.get_world_size() / total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if weight:
            sums += torch.stack([loss.detach() * total / dist.get_world_size(), torch.tensor(float(len(y)), device=device)])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    stream = ShardStream(args.data, dist.get_rank(), dist.get_world_size())
    loader = DataLoader(stream, batch_size=64)
    spare = (torch.zeros(1, args.features), torch.zeros(1))
    model = DistributedDataParallel(Regressor(args.features).to(device), device_ids=[device.index])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        loss = train_epoch(model, Lockstep(loader, spare, device), optimizer, device)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss:.5f}")
            torch.save(model.module.state_dict(), "regressor.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
