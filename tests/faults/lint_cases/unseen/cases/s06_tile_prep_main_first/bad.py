"""Segmentation of aerial point clouds with Accelerate.

The raw tiles are cut into patches once; later runs find the patches on disk.
"""
from __future__ import annotations

import dataclasses
import logging
import math
import os
import pathlib
import tempfile
import time
from typing import Callable, Dict, List

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import nn
from torch.utils.data import DataLoader, Dataset

log = logging.getLogger("pointseg")

TRANSFORMS: Dict[str, Callable] = {}


def transform(name):
    def add(fn):
        TRANSFORMS[name] = fn
        return fn

    return add


@transform("center")
def center(points):
    return points - points.mean(0, keepdim=True)


@transform("unit")
def unit(points):
    return points / points.norm(dim=1).max().clamp(min=1e-6)


@dataclasses.dataclass
class DataConfig:
    root: pathlib.Path
    splits: Dict[str, int] = dataclasses.field(default_factory=lambda: {"train": 12, "val": 4})
    points_per_tile: int = 256
    patch: int = 32
    transforms: tuple = ("center", "unit")
    read_latency: float = float(os.environ.get("TILE_READ_SECONDS", 0.0))


class TileArchive:
    """The remote archive of survey tiles (one request per tile)."""

    def __init__(self, cfg: DataConfig):
        self.cfg = cfg

    def names(self, split) -> List[str]:
        return [f"{split}_{i:04d}" for i in range(self.cfg.splits[split])]

    def read(self, name):
        time.sleep(self.cfg.read_latency)
        g = torch.Generator().manual_seed(sum(map(ord, name)))
        xyz = torch.rand(self.cfg.points_per_tile, 3, generator=g)
        return xyz, (xyz[:, 2] > 0.5).long()


class PatchWriter:
    def __init__(self, cfg: DataConfig, archive: TileArchive):
        self.cfg, self.archive = cfg, archive

    def split_dir(self, split) -> pathlib.Path:
        return self.cfg.root / split

    def convert(self, split, name):
        out = self.split_dir(split) / f"{name}.pt"
        if out.exists():
            return
        xyz, labels = self.archive.read(name)
        order = xyz[:, 0].argsort()
        patches = []
        for chunk in order.split(self.cfg.patch):
            pts = xyz[chunk]
            for key in self.cfg.transforms:
                pts = TRANSFORMS[key](pts)
            patches.append((pts, labels[chunk]))
        part = out.with_suffix(f".{os.getpid()}")
        torch.save(patches, part)
        os.replace(part, out)

    def run(self):
        for split in self.cfg.splits:
            self.split_dir(split).mkdir(parents=True, exist_ok=True)
            names = self.archive.names(split)
            for i, name in enumerate(names):
                self.convert(split, name)
                log.debug("%s %d/%d", split, i + 1, len(names))


class Patches(Dataset):
    def __init__(self, folder: pathlib.Path):
        self.items = []
        for f in sorted(folder.glob("*.pt")):
            self.items += torch.load(f)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class PointNetish(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.local = nn.Sequential(nn.Linear(3, dim), nn.ReLU())
        self.head = nn.Linear(2 * dim, 2)

    def forward(self, x):
        h = self.local(x)
        ctx = h.amax(1, keepdim=True).expand_as(h)
        return self.head(torch.cat([h, ctx], -1))


class Experiment:
    def __init__(self, data: DataConfig, epochs=2):
        self.data, self.epochs = data, epochs
        self.accelerator = Accelerator(cpu=not torch.cuda.is_available(), kwargs_handlers=self.handlers())

    def handlers(self):
        return [DistributedDataParallelKwargs(broadcast_buffers=False)]

    def loaders(self):
        writer = PatchWriter(self.data, TileArchive(self.data))
        if self.accelerator.is_main_process:  # RELATED: guard
            writer.run()  # EXPECT: long-rank0-work
        self.accelerator.wait_for_everyone()  # RELATED: hidden-collective
        train = DataLoader(Patches(writer.split_dir("train")), batch_size=4, shuffle=True, drop_last=True)
        val = DataLoader(Patches(writer.split_dir("val")), batch_size=4)
        return train, val

    def evaluate(self, model, loader):
        model.eval()
        hits = []
        with torch.no_grad():
            for x, y in loader:
                ok = (model(x).argmax(-1) == y).float().mean(1)
                hits.append(self.accelerator.gather_for_metrics(ok))
        model.train()
        return torch.cat(hits).mean().item() if hits else math.nan

    def run(self):
        train, val = self.loaders()
        model = PointNetish()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
        model, opt, train, val = self.accelerator.prepare(model, opt, train, val)
        for epoch in range(self.epochs):
            for x, y in train:
                loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
                opt.zero_grad()
                self.accelerator.backward(loss)
                opt.step()
            acc = self.evaluate(model, val)
            self.accelerator.print(f"epoch {epoch}: val acc {acc:.3f}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    base = pathlib.Path(os.environ.get("CASE_TMP", tempfile.gettempdir()))
    Experiment(DataConfig(base / "patches")).run()
