"""Time of a training step under ``holdfast.loop`` next to the bare loop over the same loader, two gloo ranks, DDP.

Both loops run in the same processes, in turns of some hundred steps, each over a loader and a model of its own; shown
is the median over the turns of the time a step takes, and of the ratio to the bare loop of the same turn. The bare loop
is measured twice, so that one sees what a difference is worth. Nothing is saved: benchmarks/checkpoints.py does that.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import holdfast
from benchmarks.ranks import start

TURNS = int(os.environ.get("HOLDFAST_BENCH_TURNS", "25"))
STEPS = 100
#: Milliseconds that a step takes about, by the width of its layers on this kind of machine.
WIDTHS = {"short steps": 64, "longer steps": 512}
BATCH = 32


class Turns:
    """A model of its own and an endless loop over data, of which some steps are made at a time."""

    def __init__(self, width: int, *, ours: bool) -> None:
        data = TensorDataset(torch.randn(1 << 14, width))
        sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
        self._loader = DataLoader(data, BATCH, sampler=sampler)
        self._sampler = sampler
        layers = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
        self._model = DistributedDataParallel(layers)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._loop = holdfast.loop(self._loader, steps=1 << 40) if ours else None
        self._batches = iter(self._loop) if self._loop is not None else self._bare()

    def _bare(self) -> Iterator[list[torch.Tensor]]:
        epoch = 0
        while True:
            self._sampler.set_epoch(epoch)
            yield from self._loader
            epoch += 1

    def turn(self) -> float:
        """Seconds a step."""
        dist.barrier()
        began = time.perf_counter()
        for _ in range(STEPS):
            (x,) = next(self._batches)
            loss = self._model(x).square().mean()
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            if self._loop is not None:
                self._loop.report(loss=loss)
        return (time.perf_counter() - began) / STEPS


def rank_main(width: int) -> None:
    """One rank."""
    torch.set_num_threads(1)
    kinds = {"bare loop": False, "bare loop again": False, "holdfast.loop": True}
    turns = {name: Turns(width, ours=ours) for name, ours in kinds.items()}
    for each in turns.values():
        each.turn()
    times: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(TURNS):
        names = list(turns)
        for name in names[number % 3 :] + names[: number % 3]:
            times[name].append(turns[name].turn())
    if dist.get_rank() == 0:
        for name, taken in times.items():
            ratio = statistics.median(one / bare for one, bare in zip(taken, times["bare loop"], strict=True))
            print(f"  {name:16} {statistics.median(taken) * 1e3:8.3f} ms a step   x {ratio:.4f}", flush=True)


def main() -> None:
    """Both widths."""
    for name, width in WIDTHS.items():
        print(f"\n{name}: two layers of {width}, batches of {BATCH}", flush=True)
        start("benchmarks.loop", 2, str(width))


if __name__ == "__main__":
    place, size, store, what = sys.argv[1:]
    dist.init_process_group("gloo", store=dist.FileStore(store, int(size)), rank=int(place), world_size=int(size))
    rank_main(int(what))
    dist.destroy_process_group()
