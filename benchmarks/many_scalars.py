"""Many scalars in one call, beside one flat all-reduce of the same bytes, one by one, coalesced, and torchmetrics.

2 and 4 ranks on this host over gloo, in turns (``ranks.py`` says what is shown); what is not to be slower than 0.9 of
the flat all-reduce shows 0.900 or more.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from benchmarks.ranks import be_one, compare, heading, start

RANKS = (2, 4)
SCALARS = (8, 64, 512)
STATES = (16, 64)
#: Turns before those that count: holdfast tries out its ways in the first calls of each size.
_WARM, _TURNS, _DEAR_TURNS = 24, 200, 30


# ---- on a rank


def _by_torch(call: Callable[[], Any]) -> None:
    """The call without the part in C++."""
    from holdfast.runtime import packing  # noqa: PLC0415

    compiled = packing.loaded
    packing.loaded = functools.cache(lambda: None)
    try:
        call()
    finally:
        packing.loaded = compiled


def _scalars(count: int) -> None:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from holdfast import comm  # noqa: PLC0415

    flat, scalars = torch.zeros(count), [torch.zeros(()) for _ in range(count)]
    plain = dist.new_group()  # in which no other way than gloo's is tried
    torch.use_deterministic_algorithms(mode=True)
    comm.all_reduce_many(scalars, group=plain)
    torch.use_deterministic_algorithms(mode=False)

    def one_by_one() -> None:
        for scalar in scalars:
            dist.all_reduce(scalar)

    compare(f"{count} scalars", {
        "torch all_reduce of a flat tensor": lambda: dist.all_reduce(flat),
        "holdfast all_reduce of a flat tensor": lambda: comm.all_reduce(flat),
        "holdfast all_reduce_many, by gloo alone": lambda: comm.all_reduce_many(scalars, group=plain),
        "holdfast all_reduce_many": lambda: comm.all_reduce_many(scalars),
        "holdfast all_reduce_many, packed by torch": lambda: _by_torch(lambda: comm.all_reduce_many(scalars)),
        "torch all_reduce_coalesced": lambda: dist.all_reduce_coalesced(scalars),
    }, _TURNS, _WARM)  # fmt: skip
    compare(f"{count} scalars", {
        "torch all_reduce of a flat tensor": lambda: dist.all_reduce(flat),
        "holdfast all_reduce_many": lambda: comm.all_reduce_many(scalars),
        "torch all_reduce, one by one": one_by_one,
    }, _DEAR_TURNS, _WARM)  # fmt: skip


def _metrics(torchmetrics: ModuleType, states: int) -> None:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from holdfast import comm  # noqa: PLC0415

    flat = torch.zeros(states)
    values = {f"metric {number}": float(number) for number in range(states)}
    collection = torchmetrics.MetricCollection(
        {f"m{number}": torchmetrics.MeanMetric(compute_with_cache=False) for number in range(states // 2)},
        compute_groups=False,
    )
    collection.update(torch.ones(3))

    def synced() -> None:
        with comm.synced(collection):
            collection.compute()

    compare(f"{states} states", {
        "torch all_reduce of a flat tensor": lambda: dist.all_reduce(flat),
        "holdfast sync_metrics": lambda: comm.sync_metrics(values),
        "torchmetrics compute()": collection.compute,
        "torchmetrics compute() within holdfast synced": synced,
    }, _DEAR_TURNS, _WARM)  # fmt: skip


def _all() -> None:
    for count in SCALARS:
        _scalars(count)
    try:
        import torchmetrics  # noqa: PLC0415
    except ImportError:
        print("torchmetrics: not measured, as it is not installed")
    else:
        for states in STATES:
            _metrics(torchmetrics, states)


def main() -> None:
    """Print the table."""
    compiler = [sys.executable, "-m", "holdfast.runtime.packing"]
    subprocess.run(compiler, check=True, stdout=subprocess.DEVNULL)
    heading()
    for size in RANKS:
        start(__name__, size, "all")


if __name__ == "__main__":
    be_one({"all": _all})
