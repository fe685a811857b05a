"""Panoptic-style trainer with manual gradient reduction; a failed forward is skipped by every rank."""
import logging
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Optional

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

log = logging.getLogger("recover")


class OutOfBudget(RuntimeError):
    """Raised where a crop would not fit in memory."""


@dataclass
class StepResult:
    loss: Optional[torch.Tensor] = None
    error: Optional[Exception] = None

    @property
    def ok(self):
        return self.error is None


def random_crop(gen, limit=28):
    side = int(torch.randint(12, 33, (1,), generator=gen))
    if side > limit:
        raise OutOfBudget(f"crop {side}x{side} needs {side * side * 4096} bytes")
    image = torch.randn(4, 3, side, side, generator=gen)
    return image, (image.mean(1) > 0).long()


class Agreement:
    """All ranks learn whether any of them failed."""

    def all_ok(self, ok):
        flag = torch.tensor([1 if ok else 0], dtype=torch.int32)
        dist.all_reduce(flag, op=dist.ReduceOp.MIN)
        return bool(flag.item())


class CropNet(nn.Module):
    def __init__(self, w=12):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, w, 3, 1, 1), nn.ReLU(), nn.Conv2d(w, 2, 1))

    def forward(self, x):
        return self.net(x)


class Trainer:
    def __init__(self, seed):
        torch.manual_seed(0)
        self.model = CropNet()
        self.optim = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.agreement = Agreement()
        self.gen = torch.Generator().manual_seed(seed)
        self.done = self.skipped = 0

    @contextmanager
    def scaled(self):
        params = [p for p in self.model.parameters()]
        yield params
        for p in params:
            p.grad.div_(dist.get_world_size())

    def local_forward(self) -> StepResult:
        try:
            image, target = random_crop(self.gen)
            return StepResult(loss=F.cross_entropy(self.model(image), target))
        except OutOfBudget as err:
            log.warning("rank %d: %s", dist.get_rank(), err)
            return StepResult(error=err)

    def apply(self, loss):
        self.optim.zero_grad()
        loss.backward()
        with self.scaled() as params:
            for p in params:
                dist.all_reduce(p.grad)
        self.optim.step()

    def step(self):
        result = self.local_forward()
        if not self.agreement.all_ok(result.ok):
            self.skipped += 1
            return
        self.apply(result.loss)
        self.done += 1

    def fit(self, steps):
        for _ in range(steps):
            self.step()


def main():
    logging.basicConfig(level=logging.WARNING)
    dist.init_process_group("gloo")
    trainer = Trainer(seed=50 + dist.get_rank())
    trainer.fit(40)
    checksum = sum(p.detach().double().sum() for p in trainer.model.parameters())
    print(f"rank {dist.get_rank()}: {trainer.done} done, {trainer.skipped} skipped, {checksum.item():.8f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
