"""Callbacks of the engine. An event is delivered by name to the method of the same name."""
import abc
import enum
import json
import pathlib
import time

import torch

import comm


class Event(enum.Enum):
    FIT_START = "fit_start"
    BATCH_END = "batch_end"
    EPOCH_END = "epoch_end"
    FIT_END = "fit_end"


class Callback(abc.ABC):
    def run_event(self, event: Event, state) -> None:
        getattr(self, event.value)(state)

    def fit_start(self, state):
        pass

    def batch_end(self, state):
        pass

    def epoch_end(self, state):
        pass

    def fit_end(self, state):
        pass


class RankZeroCallback(Callback):
    """Base for callbacks that print, plot or write files."""

    def run_event(self, event: Event, state) -> None:
        if comm.get_global_rank() != 0:  # RELATED: guard
            return
        super().run_event(event, state)


class ConsoleLogger(RankZeroCallback):
    def __init__(self, every=2):
        self.every = every

    def batch_end(self, state):
        if state.batch % self.every == 0:
            print(f"[epoch {state.epoch} batch {state.batch}] loss {state.loss:.4f} lr {state.lr:.2e}")

    def fit_end(self, state):
        print("metrics:", json.dumps(state.metrics))


class SpeedMonitor(RankZeroCallback):
    """Samples per second of the whole job, per epoch."""

    def __init__(self, window=10):
        self.window = window
        self.samples = 0
        self.started = time.monotonic()
        self.history = []

    def fit_start(self, state):
        self.started = time.monotonic()

    def batch_end(self, state):
        self.samples += state.batch_size
        self.history.append((time.monotonic(), state.batch_size))
        del self.history[: -self.window]

    def epoch_end(self, state):
        elapsed = time.monotonic() - self.started
        seen = comm.total(self.samples)  # EXPECT: rank-guarded-collective
        state.metrics["throughput/samples_per_sec"] = seen / max(elapsed, 1e-9)
        self.samples, self.started = 0, time.monotonic()


class GradientNorm(Callback):
    """Root mean square over ranks of the gradient norm; kept in the metrics of every rank."""

    def batch_end(self, state):
        sq = sum(float(p.grad.pow(2).sum()) for p in state.model.parameters() if p.grad is not None)
        state.metrics["grad/rms"] = (comm.total(sq) / comm.get_world_size()) ** 0.5


class CheckpointSaver(Callback):
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def fit_start(self, state):
        if comm.get_global_rank() == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
        comm.barrier()

    def epoch_end(self, state):
        if comm.get_global_rank() == 0:
            weights = {k: v.clone() for k, v in state.unwrapped.state_dict().items()}
            torch.save({"epoch": state.epoch, "weights": weights}, self.folder / f"ep{state.epoch}.pt")
        comm.barrier()


BUILDERS = {
    "console": ConsoleLogger,
    "speed": SpeedMonitor,
    "grad_norm": GradientNorm,
    "checkpoint": CheckpointSaver,
}


def build_callbacks(spec):
    return [BUILDERS[name](**kwargs) for name, kwargs in spec.items()]
