"""Callbacks vote on rank 0 after a validation that only rank 0 runs; every rank acts on the broadcast verdict."""
import os
from dataclasses import dataclass, field
from typing import Dict, List, Optional

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@dataclass
class Verdict:
    stop: bool = False
    lr_scale: float = 1.0
    reasons: List[str] = field(default_factory=list)


class Callback:
    def on_validation(self, epoch: int, metrics: Dict[str, float], verdict: Verdict) -> None:
        ...


class EarlyStopping(Callback):
    def __init__(self, monitor="val_loss", patience=3, min_delta=1e-4):
        self.monitor, self.patience, self.min_delta = monitor, patience, min_delta
        self.best, self.wait = float("inf"), 0

    def on_validation(self, epoch, metrics, verdict):
        if metrics[self.monitor] < self.best - self.min_delta:
            self.best, self.wait = metrics[self.monitor], 0
            return
        self.wait += 1
        if self.wait >= self.patience:
            verdict.stop = True
            verdict.reasons.append(f"{self.monitor} did not improve for {self.wait} epochs")


class ReduceOnPlateau(Callback):
    def __init__(self, factor=0.5, tolerance=1):
        self.factor, self.tolerance, self.history = factor, tolerance, []

    def on_validation(self, epoch, metrics, verdict):
        self.history.append(metrics["val_loss"])
        if len(self.history) > self.tolerance + 1 and self.history[-1] >= min(self.history[:-1]):
            verdict.lr_scale *= self.factor


class Strategy:
    """Thin layer over the process group."""

    def __init__(self):
        cuda = torch.cuda.is_available()
        if cuda:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if cuda else "gloo")
        self.device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")

    @property
    def is_global_zero(self) -> bool:
        return dist.get_rank() == 0

    def agree(self, obj):
        """The object as rank 0 holds it."""
        box = [obj] if self.is_global_zero else [None]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def wrap(self, module):
        return DistributedDataParallel(module, device_ids=[self.device.index] if self.device.type == "cuda" else None)

    def teardown(self):
        dist.destroy_process_group()


class Loop:
    def __init__(self, strategy: Strategy, max_epochs=20):
        self.strategy, self.max_epochs = strategy, max_epochs
        g = torch.Generator().manual_seed(3)
        x = torch.randn(320, 6, generator=g)
        y = x @ torch.arange(6.0).unsqueeze(1)
        train = TensorDataset(x[:256], y[:256])
        self.sampler = DistributedSampler(train)
        self.train_loader = DataLoader(train, batch_size=16, sampler=self.sampler)
        self.val_loader = DataLoader(TensorDataset(x[256:], y[256:]), batch_size=32)
        self.module = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1)).to(strategy.device)
        self.model = strategy.wrap(self.module)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.02)
        self.callbacks = [EarlyStopping(), ReduceOnPlateau()] if strategy.is_global_zero else []

    def _validate(self) -> Optional[Dict[str, float]]:
        if not self.strategy.is_global_zero:
            return None
        self.module.eval()
        with torch.no_grad():
            losses = [(self.module(x.to(self.strategy.device)) - y.to(self.strategy.device)).pow(2).mean() for x, y in self.val_loader]
        self.module.train()
        return {"val_loss": torch.stack(losses).mean().item()}

    def _vote(self, epoch: int, metrics: Optional[Dict[str, float]]) -> Verdict:
        verdict = Verdict()
        if metrics is not None:
            for cb in self.callbacks:
                cb.on_validation(epoch, metrics, verdict)
        return verdict

    def _apply(self, verdict: Verdict) -> None:
        if verdict.lr_scale != 1.0:
            for group in self.opt.param_groups:
                group["lr"] *= verdict.lr_scale

    def run(self):
        epoch = 0
        while True:
            self.sampler.set_epoch(epoch)
            for x, y in self.train_loader:
                loss = (self.model(x.to(self.strategy.device)) - y.to(self.strategy.device)).pow(2).mean()
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                self.opt.step()
            verdict, limit = self.strategy.agree((self._vote(epoch, self._validate()), epoch + 1 >= self.max_epochs))
            self._apply(verdict)
            epoch += 1
            if verdict.stop or limit:
                break
        if self.strategy.is_global_zero:
            print(f"stopped after {epoch} epochs: {'; '.join(verdict.reasons) or 'limit'}")
        return epoch


def main():
    strategy = Strategy()
    try:
        Loop(strategy).run()
    finally:
        strategy.teardown()


if __name__ == "__main__":
    main()
