"""Image classification straight from a file list; unreadable files are replaced and reported."""
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class DecodeError(IOError):
    pass


class FakeImageStore:
    """Stand-in for a folder of JPEGs; a few of them are truncated."""

    def __init__(self, n=240, truncated=(17, 101, 177)):
        self.names = [f"img_{i:05d}.jpg" for i in range(n)]
        self.truncated = {self.names[i] for i in truncated}

    def decode(self, name):
        if name in self.truncated:
            raise DecodeError(f"{name}: image file is truncated")
        idx = int(name[4:9])
        g = torch.Generator().manual_seed(idx)
        label = idx % 4
        return torch.randn(3, 16, 16, generator=g) + label * 0.3, label


class CorruptFileRegistry:
    """Names that no rank should try to read again."""

    def __init__(self):
        self.local, self.known = [], set()

    def add(self, name):
        self.local.append(name)

    def share(self):
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, self.local)  # RELATED: hidden-collective
        self.known.update(n for names in everyone for n in names)
        self.local = []


class ShardedBatches:
    def __init__(self, store, registry, batch_size, seed=0):
        self.store, self.registry, self.batch_size, self.seed = store, registry, batch_size, seed
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def order(self, epoch):
        names = list(self.store.names)
        random.Random(self.seed + epoch).shuffle(names)
        usable = len(names) // self.world * self.world
        return names[:usable][self.rank :: self.world]

    def on_decode_error(self, name, err):
        print(f"rank {self.rank}: {err}", flush=True)
        self.registry.add(name)
        self.registry.share()

    def load(self, name, fallback):
        if name in self.registry.known:
            return self.store.decode(fallback)
        try:
            return self.store.decode(name)
        except DecodeError as err:  # RELATED: guard
            self.on_decode_error(name, err)  # EXPECT: collective-in-except
            return self.store.decode(fallback)

    def epoch(self, epoch):
        names = self.order(epoch)
        fallback = next(n for n in names if n not in self.store.truncated)
        for lo in range(0, len(names), self.batch_size):
            rows = [self.load(n, fallback) for n in names[lo : lo + self.batch_size]]
            yield torch.stack([r[0] for r in rows]), torch.tensor([r[1] for r in rows])


class SmallNet(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU())
        self.fc = nn.Linear(32, classes)

    def forward(self, x):
        return self.fc(self.body(x).mean((2, 3)))


class Classifier:
    def __init__(self, data):
        self.data = data
        self.net = DDP(SmallNet())
        self.optim = torch.optim.AdamW(self.net.parameters(), lr=2e-3)

    def fit(self, epochs):
        for epoch in range(epochs):
            for images, labels in self.data.epoch(epoch):
                loss = F.cross_entropy(self.net(images), labels)
                self.optim.zero_grad()
                loss.backward()
                self.optim.step()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: {loss.item():.4f}, {len(self.data.registry.known)} corrupt files known", flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = ShardedBatches(FakeImageStore(), CorruptFileRegistry(), batch_size=12)
    Classifier(data).fit(3)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
