"""Event-driven trainer in which the metrics writer and the averaged weights exist on rank 0 and are None elsewhere."""
import copy
import json
import os
from enum import Enum
from typing import List, Optional

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Event(Enum):
    FIT_START = "fit_start"
    BATCH_END = "batch_end"
    EPOCH_END = "epoch_end"
    FIT_END = "fit_end"


class MetricsFile:
    def __init__(self, path: str):
        self._f = open(path, "a")

    def write(self, **row):
        self._f.write(json.dumps(row) + "\n")

    def sync(self):
        self._f.flush()
        os.fsync(self._f.fileno())

    def close(self):
        self.sync()
        self._f.close()


class AveragedWeights:
    def __init__(self, module: nn.Module, decay: float):
        self.module, self.decay = copy.deepcopy(module).eval(), decay
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, source: nn.Module):
        for avg, p in zip(self.module.parameters(), source.parameters()):
            avg.lerp_(p, 1 - self.decay)


class State:
    def __init__(self, raw, model, optimizer, device, run_dir):
        self.raw, self.model, self.optimizer, self.device, self.run_dir = raw, model, optimizer, device, run_dir
        self.epoch, self.batch = 0, 0
        self.loss_sum = torch.zeros((), device=device)
        self.is_main = dist.get_rank() == 0
        self.writer: Optional[MetricsFile] = None
        self.ema: Optional[AveragedWeights] = None


class Callback:
    def run_event(self, event: Event, state: State) -> None:
        getattr(self, event.value)(state)

    def fit_start(self, state): ...
    def batch_end(self, state): ...
    def epoch_end(self, state): ...
    def fit_end(self, state): ...


class Logging(Callback):
    def fit_start(self, state):
        if state.is_main:
            os.makedirs(state.run_dir, exist_ok=True)
            state.writer = MetricsFile(os.path.join(state.run_dir, "metrics.jsonl"))

    def epoch_end(self, state):
        mean = state.loss_sum / max(state.batch, 1)
        dist.all_reduce(mean)
        if state.writer is not None:
            state.writer.write(epoch=state.epoch, loss=mean.item() / dist.get_world_size())
            state.writer.sync()

    def fit_end(self, state):
        if state.writer is None:
            return
        state.writer.close()
        state.writer = None


class WeightAveraging(Callback):
    def __init__(self, decay=0.98, warmup=5):
        self.decay, self.warmup, self.seen = decay, warmup, 0

    def fit_start(self, state):
        state.ema = AveragedWeights(state.raw, self.decay) if state.is_main else None

    def batch_end(self, state):
        self.seen += 1
        if state.ema is None or self.seen < self.warmup:
            return
        state.ema.update(state.raw)


class EmaEvaluation(Callback):
    def __init__(self, loader):
        self.loader = loader

    @torch.no_grad()
    def epoch_end(self, state):
        if not state.ema:
            return
        errs = [(state.ema.module(x.to(state.device)) - y.to(state.device)).pow(2).mean() for x, y in self.loader]
        if state.writer:
            state.writer.write(epoch=state.epoch, ema_val=torch.stack(errs).mean().item())


class SaveEma(Callback):
    def fit_end(self, state):
        if state.ema is not None:
            path = os.path.join(state.run_dir, "ema.pt")
            torch.save(state.ema.module.state_dict(), path + ".tmp")
            os.replace(path + ".tmp", path)
        dist.barrier()


class Trainer:
    def __init__(self, state: State, callbacks: List[Callback], loader: DataLoader, max_epochs: int):
        self.state, self.callbacks, self.loader, self.max_epochs = state, callbacks, loader, max_epochs

    def _fire(self, event: Event):
        for cb in self.callbacks:
            cb.run_event(event, self.state)

    def fit(self):
        s = self.state
        self._fire(Event.FIT_START)
        for s.epoch in range(self.max_epochs):
            self.loader.sampler.set_epoch(s.epoch)
            s.loss_sum.zero_()
            s.batch = 0
            for x, y in self.loader:
                loss = (s.model(x.to(s.device)) - y.to(s.device)).pow(2).mean()
                s.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                s.optimizer.step()
                s.loss_sum += loss.detach()
                s.batch += 1
                self._fire(Event.BATCH_END)
            self._fire(Event.EPOCH_END)
        self._fire(Event.FIT_END)


def main():
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    try:
        g = torch.Generator().manual_seed(21)
        x = torch.randn(384, 9, generator=g)
        y = x.sin().sum(1, keepdim=True)
        train = TensorDataset(x[:320], y[:320])
        loader = DataLoader(train, batch_size=16, sampler=DistributedSampler(train, shuffle=True, seed=3))
        held_out = DataLoader(TensorDataset(x[320:], y[320:]), batch_size=32)
        raw = nn.Sequential(nn.Linear(9, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
        model = DistributedDataParallel(raw, device_ids=[device.index] if cuda else None)
        opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
        state = State(raw, model, opt, device, os.environ.get("RUN_DIR", "run"))
        Trainer(state, [Logging(), WeightAveraging(), EmaEvaluation(held_out), SaveEma()], loader, 3).fit()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
