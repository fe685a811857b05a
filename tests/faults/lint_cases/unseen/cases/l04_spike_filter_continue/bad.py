"""Auto-regressive field forecaster: plain processes, hand-written gradient averaging.

Observations come with occasional sensor glitches, so batches whose loss jumps far
above the recent history are dropped before they reach the weights.
"""
import logging
import math
import os
from collections import deque
from dataclasses import dataclass, field
from statistics import median

import torch
import torch.distributed as dist

logger = logging.getLogger("forecast")


@dataclass
class TrainSettings:
    grid: int = 24
    horizon: int = 3
    batch_size: int = 4
    steps_per_epoch: int = 8
    epochs: int = 2
    lr: float = 5e-3
    clip: float = 1.0
    spike_factor: float = 6.0
    history: int = 16
    warmup: int = 3
    patience: int = 2
    glitchy_ranks: tuple = (1,)
    glitch_steps: tuple = (5, 11)


@dataclass
class SpikeFilter:
    """Remembers recent losses and says whether a new one looks sane."""

    factor: float
    size: int
    warmup: int
    dropped: int = 0
    _window: deque = field(init=False, repr=False)

    def __post_init__(self):
        self._window = deque(maxlen=self.size)

    def accepts(self, value: float) -> bool:
        if not math.isfinite(value):
            self.dropped += 1
            return False
        if len(self._window) >= self.warmup and value > self.factor * median(self._window):
            self.dropped += 1
            return False
        self._window.append(value)
        return True


class AveragingOptimizer:
    """Wraps a local optimizer; ``step`` averages gradients over the world first."""

    def __init__(self, params, clip, **kw):
        self.params = [p for p in params if p.requires_grad]
        self.inner = torch.optim.Adam(self.params, **kw)
        self.clip = clip

    def _flat(self):
        return torch.cat([p.grad.reshape(-1) for p in self.params])

    def _unflatten(self, flat):
        offset = 0
        for p in self.params:
            p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))
            offset += p.numel()

    def step(self):
        flat = self._flat()
        dist.all_reduce(flat)  # RELATED: hidden-collective
        flat /= dist.get_world_size()
        self._unflatten(flat)
        torch.nn.utils.clip_grad_norm_(self.params, self.clip)
        self.inner.step()
        self.zero_grad()

    def zero_grad(self):
        self.inner.zero_grad(set_to_none=True)


class GlitchyField:
    """Travelling waves on a ring; some ranks own a station with a broken sensor."""

    def __init__(self, cfg: TrainSettings, rank: int):
        self.cfg, self.rank = cfg, rank
        self.gen = torch.Generator().manual_seed(900 + rank)
        self.count = 0

    def next(self):
        cfg = self.cfg
        phase = torch.rand(cfg.batch_size, 1, generator=self.gen) * 2 * math.pi
        x = torch.linspace(0, 2 * math.pi, cfg.grid)
        frames = [torch.sin(x + phase + 0.2 * k) for k in range(cfg.horizon + 1)]
        self.count += 1
        if self.rank in cfg.glitchy_ranks and self.count in cfg.glitch_steps:
            frames[-1] = frames[-1] + 500.0
        return torch.stack(frames, dim=1)


class Forecaster:
    def __init__(self, cfg: TrainSettings):
        self.cfg = cfg
        self.rank = dist.get_rank()
        torch.manual_seed(1)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(cfg.grid, 48), torch.nn.Tanh(), torch.nn.Linear(48, cfg.grid)
        )
        self.opt = AveragingOptimizer(self.net.parameters(), cfg.clip, lr=cfg.lr)
        self.filter = SpikeFilter(cfg.spike_factor, cfg.history, cfg.warmup)
        self.data = GlitchyField(cfg, self.rank)
        self.best, self.stale = float("inf"), 0

    def rollout_loss(self, frames):
        state, loss = frames[:, 0], 0.0
        for k in range(1, frames.shape[1]):
            state = state + self.net(state)
            loss = loss + (state - frames[:, k]).pow(2).mean()
        return loss / (frames.shape[1] - 1)

    def train_epoch(self, epoch):
        seen = torch.zeros(2)
        for i in range(self.cfg.steps_per_epoch):
            loss = self.rollout_loss(self.data.next())
            loss.backward()
            value = loss.item()
            if not self.filter.accepts(value):  # RELATED: guard
                logger.warning("rank %d drops batch %d of epoch %d: %.3g", self.rank, i, epoch, value)
                self.opt.zero_grad()
                continue  # EXPECT: local-early-exit
            self.opt.step()
            seen += torch.tensor([value, 1.0])
        dist.all_reduce(seen)
        return (seen[0] / seen[1].clamp(min=1)).item()

    @torch.no_grad()
    def validate(self):
        gen = torch.Generator().manual_seed(5)
        x = torch.rand(16, self.cfg.grid, generator=gen)
        err = (self.net(x) ** 2).mean().reshape(1)
        dist.all_reduce(err)
        return err.item() / dist.get_world_size()

    def fit(self):
        for epoch in range(self.cfg.epochs):
            train, val = self.train_epoch(epoch), self.validate()
            if self.rank == 0:
                logger.info("epoch %d train %.4f val %.4f", epoch, train, val)
            self.stale = 0 if val < self.best else self.stale + 1
            self.best = min(self.best, val)
            if self.stale >= self.cfg.patience:
                break
        if self.rank == 0:
            torch.save(self.net.state_dict(), os.path.join(os.environ.get("CASE_TMP", "."), "forecaster.pt"))
        dist.barrier()


def main():
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    Forecaster(TrainSettings()).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
