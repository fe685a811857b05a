"""A small engine: state, events and callbacks, trained with DDP."""
import os
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import comm
from callbacks import Event, build_callbacks


@dataclass
class State:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    epoch: int = 0
    batch: int = 0
    batch_size: int = 0
    loss: float = float("nan")
    metrics: dict = field(default_factory=dict)

    @property
    def unwrapped(self) -> nn.Module:
        return getattr(self.model, "module", self.model)

    @property
    def lr(self) -> float:
        return self.optimizer.param_groups[0]["lr"]


class Engine:
    def __init__(self, state: State, callbacks: list):
        self.state, self.callbacks = state, callbacks

    def emit(self, event: Event):
        for callback in self.callbacks:
            callback.run_event(event, self.state)

    def fit(self, batches: list[Any], epochs: int):
        self.emit(Event.FIT_START)
        for self.state.epoch in range(epochs):
            for self.state.batch, (x, y) in enumerate(batches):
                loss = nn.functional.mse_loss(self.state.model(x), y)
                self.state.optimizer.zero_grad()
                loss.backward()
                self.state.optimizer.step()
                self.state.loss, self.state.batch_size = loss.item(), len(x)
                self.emit(Event.BATCH_END)
            self.emit(Event.EPOCH_END)
        self.emit(Event.FIT_END)


def main():
    comm.initialize()
    torch.manual_seed(comm.get_global_rank())
    batches = [(torch.randn(4, 6), torch.randn(4, 2)) for _ in range(3)]
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 2)))
    state = State(model, torch.optim.SGD(model.parameters(), lr=0.05))
    out = os.path.join(os.environ.get("CASE_TMP", "."), "ckpt")
    callbacks = build_callbacks({"speed": {}, "grad_norm": {}, "checkpoint": {"folder": out}, "console": {"every": 1}})
    Engine(state, callbacks).fit(batches, epochs=2)


if __name__ == "__main__":
    main()
