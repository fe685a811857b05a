"""Many scalars in one call, next to one flat all-reduce, single calls, coalescing and torchmetrics.

2 and 4 ranks on this host over gloo, in turns (``ranks.py`` describes the output). The target is
0.9 of the speed of the flat all-reduce of the same bytes.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from benchmarks.ranks import compare, print_heading, run_rank, start_ranks

RANKS = (2, 4)
SCALARS = (8, 64, 512)
STATES = (16, 64)
#: Warm-up turns: holdfast compares its algorithms in the first calls of each size.
_WARM, _TURNS, _SLOW_TURNS = 24, 200, 30


# ---- on a rank


def _without_extension(call: Callable[[], Any]) -> None:
    """Run the call without the C++ extension."""
    from holdfast.training import packing_extension  # noqa: PLC0415

    compiled = packing_extension.load
    packing_extension.load = functools.cache(lambda: None)
    try:
        call()
    finally:
        packing_extension.load = compiled


def _compare_scalars(count: int) -> None:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from holdfast import comm  # noqa: PLC0415

    flat, scalars = torch.zeros(count), [torch.zeros(()) for _ in range(count)]
    plain = dist.new_group()  # a group that only uses gloo
    torch.use_deterministic_algorithms(mode=True)
    comm.all_reduce_many(scalars, group=plain)
    torch.use_deterministic_algorithms(mode=False)

    def one_by_one() -> None:
        for scalar in scalars:
            dist.all_reduce(scalar)

    compare(
        f"{count} scalars",
        {
            "torch all_reduce of a flat tensor": lambda: dist.all_reduce(flat),
            "holdfast all_reduce of a flat tensor": lambda: comm.all_reduce(flat),
            "holdfast all_reduce_many, gloo only": lambda: comm.all_reduce_many(
                scalars, group=plain
            ),
            "holdfast all_reduce_many": lambda: comm.all_reduce_many(scalars),
            "holdfast all_reduce_many, packed by torch": lambda: _without_extension(
                lambda: comm.all_reduce_many(scalars)
            ),
            "torch all_reduce_coalesced": lambda: dist.all_reduce_coalesced(scalars),
        },
        _TURNS,
        _WARM,
    )
    compare(
        f"{count} scalars",
        {
            "torch all_reduce of a flat tensor": lambda: dist.all_reduce(flat),
            "holdfast all_reduce_many": lambda: comm.all_reduce_many(scalars),
            "torch all_reduce, one by one": one_by_one,
        },
        _SLOW_TURNS,
        _WARM,
    )


def _compare_metrics(torchmetrics: ModuleType, states: int) -> None:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from holdfast import comm  # noqa: PLC0415

    flat = torch.zeros(states)
    values = {f"metric {number}": float(number) for number in range(states)}
    collection = torchmetrics.MetricCollection(
        {
            f"m{number}": torchmetrics.MeanMetric(compute_with_cache=False)
            for number in range(states // 2)
        },
        compute_groups=False,
    )
    collection.update(torch.ones(3))

    def synced() -> None:
        with comm.synced(collection):
            collection.compute()

    compare(
        f"{states} states",
        {
            "torch all_reduce of a flat tensor": lambda: dist.all_reduce(flat),
            "holdfast sync_metrics": lambda: comm.sync_metrics(values),
            "torchmetrics compute()": collection.compute,
            "torchmetrics compute() within holdfast synced": synced,
        },
        _SLOW_TURNS,
        _WARM,
    )


def _compare_all() -> None:
    for count in SCALARS:
        _compare_scalars(count)
    try:
        import torchmetrics  # noqa: PLC0415
    except ImportError:
        print("torchmetrics: not measured: not installed")
    else:
        for states in STATES:
            _compare_metrics(torchmetrics, states)


def main() -> None:
    """Print the table."""
    compiler = [sys.executable, "-m", "holdfast.training.packing_extension"]
    subprocess.run(compiler, check=True, stdout=subprocess.DEVNULL)
    print_heading()
    for size in RANKS:
        start_ranks(__name__, size, "all")


if __name__ == "__main__":
    run_rank({"all": _compare_all})
