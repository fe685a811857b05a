"""Step time under ``holdfast.loop``, next to a bare loop over the same data; two gloo ranks, DDP.

All loops run in the same processes, in turns of 100 steps, each with its own loader and model.
Printed are the median step time over the turns, and the median ratio to the bare loop of the same
turn. The bare loop is measured twice; the difference is noise. Nothing is saved:
benchmarks/checkpoints.py measures that.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import holdfast
from benchmarks.ranks import run_rank, start_ranks

TURNS = int(os.environ.get("HOLDFAST_BENCH_TURNS", "25"))
STEPS = 100
#: Name -> width of the layers.
WIDTHS = {"short steps": 64, "longer steps": 512}
BATCH = 32


class Loop:
    """A model and an infinite training loop, which runs a few steps at a time."""

    def __init__(self, width: int, *, resilient: bool) -> None:
        data = TensorDataset(torch.randn(1 << 14, width))
        sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
        self._loader = DataLoader(data, BATCH, sampler=sampler)
        self._sampler = sampler
        layers = torch.nn.Sequential(
            torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 1)
        )
        self._model = DistributedDataParallel(layers)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._loop = holdfast.loop(self._loader, steps=1 << 40) if resilient else None
        self._batches = iter(self._loop) if self._loop is not None else self._bare()

    def _bare(self) -> Iterator[list[torch.Tensor]]:
        epoch = 0
        while True:
            self._sampler.set_epoch(epoch)
            yield from self._loader
            epoch += 1

    def turn(self) -> float:
        """Run some steps; return the seconds per step."""
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


def compare_loops(width: int) -> None:
    """Run the loops in turns; rank 0 prints the results."""
    kinds = {"bare loop": False, "bare loop again": False, "holdfast.loop": True}
    loops = {name: Loop(width, resilient=resilient) for name, resilient in kinds.items()}
    for loop in loops.values():
        loop.turn()
    times: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(TURNS):
        names = list(loops)
        for name in names[number % 3 :] + names[: number % 3]:
            times[name].append(loops[name].turn())
    if dist.get_rank() == 0:
        for name, durations in times.items():
            ratio = statistics.median(
                one / bare for one, bare in zip(durations, times["bare loop"], strict=True)
            )
            print(
                f"  {name:16} {statistics.median(durations) * 1e3:8.3f} ms per step   x "
                f"{ratio:.4f}",
                flush=True,
            )


def main() -> None:
    """Print the results for both widths."""
    for name, width in WIDTHS.items():
        print(f"\n{name}: two layers of {width}, batches of {BATCH}", flush=True)
        start_ranks("benchmarks.loop", 2, name)


if __name__ == "__main__":
    run_rank({name: partial(compare_loops, width) for name, width in WIDTHS.items()})
