"""A small training job for tests of save, kill and restore; all numbers follow from its seed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from holdfast import Checkpoint


class Net(nn.Module):
    """Odd sizes, a 0-dimensional buffer, tied weights, a frozen layer, and a layer without gradients."""

    def __init__(self, width: int = 7) -> None:
        super().__init__()
        self.embed = nn.Linear(5, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(width, 5, bias=False)
        self.tied = nn.Linear(width, 5, bias=False)
        self.tied.weight = self.head.weight
        self.frozen = nn.Linear(5, 5).requires_grad_(requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x):
        return (
            self.frozen(self.head(self.drop(self.norm(self.embed(x)))) + self.tied(self.embed(x)))
            * self.scale
        )


class Job:
    """Model, optimizer, scheduler, scaler and their checkpoint."""

    def __init__(
        self, root, *, seed=1, optimizer=None, wrap=lambda model: model, width=7, **options
    ):
        torch.manual_seed(seed)
        self.model = wrap(Net(width))
        make = optimizer or (lambda parameters: torch.optim.AdamW(parameters, lr=0.01))
        self.optimizer = make([each for each in self.model.parameters() if each.requires_grad])
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.5)
        self.checkpoint = Checkpoint(
            root, model=self.model, optimizer=self.optimizer, scheduler=self.scheduler, **options
        )

    def train(self, steps):
        """Train; return the exact loss of each step."""
        losses = []
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = self.model(torch.randn(4, 5)).square().mean()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            losses.append(loss.item())
        return losses


def flipped(path: Path, at: int = -1) -> None:
    """Flip one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[at if at >= 0 else len(data) // 2] ^= 1
    path.write_bytes(data)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a tmpfs of this size."""
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", str(folder).encode(), b"tmpfs", 0, f"size={size}".encode()) != 0:
        pytest.skip("this user may not mount a file system")
    try:
        yield folder
    finally:
        libc.umount2(str(folder).encode(), 2)
