"""Bounded collectives beside torch's plain ones: what a call costs more, and large tensors whole and in pieces.

``chunk="auto"`` tries out its ways in the first calls, which are not counted. A call's own cost is CPU time on one rank
that is alone in its group, where nothing is waited for; with two ranks on two cores the scheduler's share is larger
than what is to be measured, and both are shown.
"""

from __future__ import annotations

import functools
import os
import statistics
import time

from benchmarks.links import slow_links, why_not
from benchmarks.ranks import be_one, compare, heading, start

RANKS = (2, 4)
LARGE, MIDDLE = 100_000_000, 10_000_000
ROUND_TRIP_MS = 10
_CALLS, _TURNS = 3000, 15
#: Turns in which every way has been tried out.
_WARM = 20


def _alone() -> None:
    import torch  # noqa: PLC0415 - only ranks import torch
    import torch.distributed as dist  # noqa: PLC0415

    from holdfast import comm  # noqa: PLC0415

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # gloo's thread on the same core
    tensor = torch.ones(4)
    calls = {
        "torch all_reduce": lambda: dist.all_reduce(tensor),
        "holdfast all_reduce, one call": lambda: comm.all_reduce(tensor, chunk=None),
        "holdfast all_reduce": lambda: comm.all_reduce(tensor),
    }
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_TURNS):
        for name, call in calls.items():
            began = time.process_time()
            for _ in range(_CALLS):
                call()
            taken[name].append(1e6 * (time.process_time() - began) / _CALLS)
    base, *_ = taken.values()
    for name, values in taken.items():
        more = statistics.median(value - zero for value, zero in zip(values, base, strict=True))
        print(f"{'1 rank, 4 floats, CPU time':42} {name:46} {statistics.median(values):7.1f} us {more:+8.1f} us")


def _small() -> None:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from holdfast import comm  # noqa: PLC0415

    for size in (4, 100_000):
        tensor = torch.zeros(size)
        compare(f"{size:,} float32", {
            "torch all_reduce": functools.partial(dist.all_reduce, tensor),
            "holdfast all_reduce, one call": functools.partial(comm.all_reduce, tensor, chunk=None),
            "holdfast all_reduce": functools.partial(comm.all_reduce, tensor),
        }, 500, _WARM)  # fmt: skip


def _large() -> None:
    _sizes(LARGE, 8)


def _delayed() -> None:
    _sizes(MIDDLE, 8)


def _sizes(size: int, turns: int) -> None:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from holdfast import comm  # noqa: PLC0415

    tensor = torch.zeros(size)
    compare(f"{size:,} float32", {
        "torch all_reduce": lambda: dist.all_reduce(tensor),
        "holdfast all_reduce, one call": lambda: comm.all_reduce(tensor, chunk=None),
        "holdfast all_reduce, 1 M pieces, 4 at once": lambda: comm.all_reduce(tensor, chunk=1 << 20),
        "holdfast all_reduce": lambda: comm.all_reduce(tensor),
        "holdfast all_reduce, bf16 on the wire": lambda: comm.all_reduce(tensor, wire="bf16"),
    }, turns, _WARM if size < LARGE else 12)  # fmt: skip


def main() -> None:
    """Print the table."""
    start(__name__, 1, "alone")
    heading()
    for size in RANKS:
        start(__name__, size, "small")
        start(__name__, size, "large")
    if why := why_not():
        print(f"{ROUND_TRIP_MS} ms round trip: not measured, as {why}")
        return
    for size in RANKS:
        with slow_links(size, ROUND_TRIP_MS) as spaces:
            print(f"-- {ROUND_TRIP_MS} ms round trip")
            start(__name__, size, "delayed", spaces)


if __name__ == "__main__":
    be_one({"alone": _alone, "small": _small, "large": _large, "delayed": _delayed})
