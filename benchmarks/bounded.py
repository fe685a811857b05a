"""Cost of collectives with timeouts, and large tensors in one call and in chunks, next to torch.

``chunk="auto"`` compares its algorithms in the first calls, which are not counted. The cost of a
call is CPU time on a rank that is alone in its group and waits for nothing. The speed of a shared
machine changes by the second, so blocks of a few calls alternate in random order; the difference
and the ratio to torch's call are medians over pairs of blocks of the same turn. With two ranks on
two cores the scheduler's share is larger than that cost; both are printed.
"""

from __future__ import annotations

import functools
import os
import random
import statistics
import time

from benchmarks.links import slow_links, why_not
from benchmarks.ranks import compare, print_heading, run_rank, start_ranks

RANKS = (2, 4)
LARGE, MIDDLE = 100_000_000, 10_000_000
ROUND_TRIP_MS = 10
_CALLS, _TURNS = 12, 2000
#: Warm-up turns, in which every algorithm is tried.
_WARM = 20


def _time_one_rank() -> None:
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
    durations: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_TURNS):
        for name, call in random.sample(list(calls.items()), len(calls)):
            began = time.process_time()
            for _ in range(_CALLS):
                call()
            durations[name].append(1e6 * (time.process_time() - began) / _CALLS)
    base, *_ = durations.values()
    for name, values in durations.items():
        pairs = list(zip(values, base, strict=True))
        added_us = statistics.median(value - zero for value, zero in pairs)
        ratio = statistics.median(value / zero for value, zero in pairs)
        print(
            f"{'1 rank, 4 floats, CPU time':42} {name:46} {statistics.median(values):7.1f} us "
            f"{added_us:+8.1f} us {ratio:8.2f} x"
        )


def _compare_small() -> None:
    import torch  # noqa: PLC0415 - only ranks import torch
    import torch.distributed as dist  # noqa: PLC0415

    from holdfast import comm  # noqa: PLC0415

    for size in (4, 100_000):
        tensor = torch.zeros(size)
        compare(
            f"{size:,} float32",
            {
                "torch all_reduce": functools.partial(dist.all_reduce, tensor),
                "holdfast all_reduce, one call": functools.partial(
                    comm.all_reduce, tensor, chunk=None
                ),
                "holdfast all_reduce": functools.partial(comm.all_reduce, tensor),
            },
            500,
            _WARM,
        )


def _compare_large() -> None:
    _compare_algorithms(LARGE, 8)


def _compare_delayed() -> None:
    _compare_algorithms(MIDDLE, 8)


def _compare_algorithms(size: int, turns: int) -> None:
    import torch  # noqa: PLC0415 - only ranks import torch
    import torch.distributed as dist  # noqa: PLC0415

    from holdfast import comm  # noqa: PLC0415

    tensor = torch.zeros(size)
    compare(
        f"{size:,} float32",
        {
            "torch all_reduce": lambda: dist.all_reduce(tensor),
            "holdfast all_reduce, one call": lambda: comm.all_reduce(tensor, chunk=None),
            "holdfast all_reduce, 1 M chunks, 4 in flight": lambda: comm.all_reduce(
                tensor, chunk=1 << 20
            ),
            "holdfast all_reduce": lambda: comm.all_reduce(tensor),
            "holdfast all_reduce, bf16 on the wire": lambda: comm.all_reduce(tensor, wire="bf16"),
        },
        turns,
        _WARM if size < LARGE else 12,
    )


def main() -> None:
    """Print the table."""
    start_ranks(__name__, 1, "one rank")
    print_heading()
    for size in RANKS:
        start_ranks(__name__, size, "small")
        start_ranks(__name__, size, "large")
    if why := why_not():
        print(f"{ROUND_TRIP_MS} ms round trip: not measured: {why}")
        return
    for size in RANKS:
        with slow_links(size, ROUND_TRIP_MS) as namespaces:
            print(f"-- {ROUND_TRIP_MS} ms round trip")
            start_ranks(__name__, size, "delayed", namespaces)


if __name__ == "__main__":
    run_rank(
        {
            "one rank": _time_one_rank,
            "small": _compare_small,
            "large": _compare_large,
            "delayed": _compare_delayed,
        }
    )
