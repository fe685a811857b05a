"""One rank caches its larger shard in memory and runs out of host memory in the dataset's constructor."""
# case: processes=3 ending=crash causes=python-exception-on-one-rank,oom-on-one-rank-then-timeout ranks=2 framework=ddp

import resource

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

GIB = 1 << 30


def limit_memory(extra):
    """Apply the memory limit of the batch system to this process: what is mapped now, and more."""
    with open("/proc/self/statm") as f:
        mapped = int(f.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + extra, resource.RLIM_INFINITY))


class CachedImages(torch.utils.data.Dataset):
    """All images of a shard, decoded once."""

    def __init__(self, count, side):
        self.images = torch.zeros(count, 3, side, side)  # GUILTY
        self.labels = torch.arange(count) % 10

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.images[i, :, :8, :8], self.labels[i]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    limit_memory(2 * GIB)
    # the last shard has the photos at full resolution
    shards = [(64, 32), (64, 32), (64, 4096)]
    dataset = CachedImages(*shards[rank])  # ALSO
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, shuffle=True)
    for epoch in range(3):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
