"""Many scalars in one call, beside one flat all-reduce of the same bytes, one by one, coalesced, and torchmetrics.

2 and 4 ranks on this host over gloo; the calls take turns, each begun by all ranks at once, and count as long as rank 0
is in them. Shown are the median of the turns in µs, and how many times faster than torch's flat all-reduce that is (the
median of the ratios of each turn; one that is not to be slower than 0.9 of it shows 0.90 or more).
"""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import Any

RANKS = (2, 4)
SCALARS = (8, 64, 512)
STATES = (16, 64)
#: Turns before those that count: holdfast tries out its ways in the first calls of each size.
_WARM, _TURNS, _DEAR_TURNS = 24, 200, 30

Calls = dict[str, Callable[[], Any]]


# ---- on a rank


def _compare(title: str, calls: Calls, turns: int) -> None:
    """The first of the calls is the flat one."""
    import torch.distributed as dist  # noqa: PLC0415 - only ranks import torch

    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(_WARM + turns):
        for name, call in calls.items():
            if turn < _WARM and name.startswith("torch") and turn > 1:
                continue
            dist.barrier()
            began = time.perf_counter()
            call()
            if turn >= _WARM:
                taken[name].append(time.perf_counter() - began)
    if dist.get_rank():
        return
    base = next(iter(taken.values()))
    for name, values in taken.items():
        ratio = statistics.median(zero / value for zero, value in zip(base, values, strict=True))
        middle = 1e6 * statistics.median(values)
        print(f"{dist.get_world_size()} ranks, {title:14} {name:46} {middle:10,.0f} {ratio:8.3f}", flush=True)


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

    _compare(f"{count} scalars", {
        "torch all_reduce of a flat tensor": lambda: dist.all_reduce(flat),
        "holdfast all_reduce of a flat tensor": lambda: comm.all_reduce(flat),
        "holdfast all_reduce_many, by gloo alone": lambda: comm.all_reduce_many(scalars, group=plain),
        "holdfast all_reduce_many": lambda: comm.all_reduce_many(scalars),
        "holdfast all_reduce_many, packed by torch": lambda: _by_torch(lambda: comm.all_reduce_many(scalars)),
        "torch all_reduce_coalesced": lambda: dist.all_reduce_coalesced(scalars),
    }, _TURNS)  # fmt: skip
    _compare(f"{count} scalars", {
        "torch all_reduce of a flat tensor": lambda: dist.all_reduce(flat),
        "holdfast all_reduce_many": lambda: comm.all_reduce_many(scalars),
        "torch all_reduce, one by one": one_by_one,
    }, _DEAR_TURNS)  # fmt: skip


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

    _compare(f"{states} states", {
        "torch all_reduce of a flat tensor": lambda: dist.all_reduce(flat),
        "holdfast sync_metrics": lambda: comm.sync_metrics(values),
        "torchmetrics compute()": collection.compute,
        "torchmetrics compute() within holdfast synced": synced,
    }, _DEAR_TURNS)  # fmt: skip


def _rank(rank: int, size: int, file: str) -> None:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    torch.set_num_threads(1)
    store = dist.FileStore(file, size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=120))
    for count in SCALARS:
        _scalars(count)
    try:
        import torchmetrics  # noqa: PLC0415
    except ImportError:
        print("torchmetrics: not measured, as it is not installed")
    else:
        for states in STATES:
            _metrics(torchmetrics, states)
    dist.barrier()
    os._exit(0)


# ---- starting them


def _start(size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", "-m", __name__]
        ranks = [
            subprocess.Popen([*command, str(rank), str(size), f"{folder}/store"],
                             env=os.environ | {"OMP_NUM_THREADS": "1"})
            for rank in range(size)
        ]  # fmt: skip
        try:
            statuses = [rank.wait(600) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert statuses == [0] * size


def main() -> None:
    """Print the table."""
    compiler = [sys.executable, "-m", "holdfast.runtime.packing"]
    subprocess.run(compiler, check=True, stdout=subprocess.DEVNULL)
    print(f"{'':24} {'':46} {'µs':>10} {'faster':>8}", flush=True)
    for size in RANKS:
        _start(size)


if __name__ == "__main__":
    _rank(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
