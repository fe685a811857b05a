"""Linear probe on cached frozen features: one process fills the cache, the rest read it."""
import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@contextlib.contextmanager
def main_process_first(desc=""):
    """Rank 0 runs the body before the other ranks do."""
    rank = dist.get_rank()
    if rank != 0:
        dist.barrier()
    try:
        yield rank == 0
    finally:
        if rank == 0:
            dist.barrier()


class FrozenBackbone(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        torch.manual_seed(77)
        self.net = nn.Sequential(nn.Conv2d(3, dim, 4, 4), nn.GELU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.requires_grad_(False).eval()

    def forward(self, x):
        return self.net(x)


class FeatureCache:
    def __init__(self, root, name):
        self.path = Path(root) / f"{name}.pt"

    def compute(self, images, labels):
        backbone = FrozenBackbone()
        feats = torch.cat([backbone(chunk) for chunk in images.split(64)])
        return {"feats": feats, "labels": labels}

    def fill(self, images, labels):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        torch.save(self.compute(images, labels), partial)
        os.replace(partial, self.path)

    def read(self):
        blob = torch.load(self.path, weights_only=True)
        return TensorDataset(blob["feats"], blob["labels"])

    def get(self, images, labels):
        if not self.path.exists():
            self.fill(images, labels)
        return self.read()


def raw_images(n=320, classes=4):
    g = torch.Generator().manual_seed(8)
    y = torch.arange(n) % classes
    proto = torch.randn(classes, 3, 16, 16, generator=g)
    return proto[y] + torch.randn(n, 3, 16, 16, generator=g), y


class ProbeData:
    def __init__(self, root):
        self.cache = FeatureCache(root, "train_feats")

    def setup(self):
        images, labels = raw_images()
        with main_process_first("feature extraction"):
            self.train = self.cache.get(images, labels)
        return self

    def loader(self, batch):
        return DataLoader(self.train, batch, sampler=DistributedSampler(self.train, shuffle=True), drop_last=True)


class LinearProbe:
    def __init__(self, dim, classes=4):
        self.head = DDP(nn.Linear(dim, classes))
        self.optim = torch.optim.SGD(self.head.parameters(), lr=0.1, momentum=0.9)

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            loader.sampler.set_epoch(epoch)
            for x, y in loader:
                loss = F.cross_entropy(self.head(x), y)
                self.optim.zero_grad()
                loss.backward()
                self.optim.step()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: {loss.item():.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    root = os.environ.get("FEATURE_CACHE", os.path.join(tempfile.gettempdir(), "probe_feature_cache"))
    data = ProbeData(root).setup()
    torch.manual_seed(0)
    LinearProbe(data.train.tensors[0].size(1)).fit(data.loader(32), epochs=4)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(root, ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
