"""The stages of one step, in its own_data process: store, group, barrier, verified all-reduces."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

from holdfast.preflight.torch_smoke_test import (
    SmokeTestFailure,
    SmokeTestPlan,
    SmokeTestStage,
    StageTiming,
)
from holdfast.preflight.torch_smoke_test.stage_watchdog import StageFailed, StageWatchdog

_ROUNDS = 3
#: Sums of integers below this are exact in float32 for up to 2**14 ranks.
_PERIOD = 97
_SOURCE_LOCATION = re.compile(r"\[(?:enforce fail at )?/?[\w./-]+:\d+\]\.? ")


def run_step(
    plan: SmokeTestPlan, processes: int, emit: Callable[[SmokeTestStage | SmokeTestFailure], None]
) -> None:
    """Run the stages with the first ``processes`` ranks; end the process if one fails."""
    watchdog = StageWatchdog(plan, processes, emit, lambda limit_s: _connect(plan, limit_s))
    try:
        store = _store(plan, processes, watchdog)  # noqa: SYNC005 - StageWatchdog.fail ends the process
        device = _group(plan, processes, store, watchdog)
        if processes > 1:
            _barrier(processes, watchdog)
        _all_reduce(plan, processes, device, watchdog)
        if processes > 1:
            _leave(plan, processes, watchdog)
    except (
        RuntimeError,
        ValueError,
        OSError,
        StageFailed,
    ) as error:  # torch's own_data errors are RuntimeErrors
        watchdog.fail(_first_line(error), getattr(error, "missing", ()))


def serve_store(
    plan: SmokeTestPlan,
    ready: Callable[[], None],
    emit: Callable[[SmokeTestStage | SmokeTestFailure], None],
) -> None:
    """Serve the store until all ranks have left or this process is killed."""
    try:
        store = _connect(plan, plan.limit_s, serve=True)
        ready()
        while not store.check([f"left/{rank}" for rank in range(plan.world)]):
            time.sleep(0.05)
    except RuntimeError as error:
        host = os.uname().nodename
        emit(
            SmokeTestFailure(
                rank=plan.rank,
                host=host,
                stage="store",
                processes=plan.world,
                why=_first_line(error),
            )
        )


def _connect(plan: SmokeTestPlan, limit_s: float, *, serve: bool = False) -> TCPStore:
    """Return a connection to the store, or the store itself. Raises RuntimeError."""
    limit = timedelta(seconds=limit_s)
    return TCPStore(plan.address, plan.port, is_master=serve, timeout=limit, wait_for_workers=False)


def _store(plan: SmokeTestPlan, processes: int, watchdog: StageWatchdog) -> Store:
    """Connect to the store that rank 0 serves, and wait for the other ranks."""
    # A rank in none of the smaller steps waits for them too, and is notified if one fails.
    watchdog.begin(
        "store",
        plan.wait_s * (1 + sum(1 < size < processes and plan.rank >= size for size in plan.steps)),
    )
    if processes == 1:
        return HashStore()
    watchdog.connect()
    store = _connect(plan, plan.limit_s)
    watchdog.wait_for_all()
    watchdog.done(
        SmokeTestStage(
            name="store",
            processes=processes,
            took_s=watchdog.elapsed_s(),
            detail=f"all {processes} ranks arrived",
        )
    )
    return PrefixStore(f"group/{processes}", store)


def _group(
    plan: SmokeTestPlan, processes: int, store: Store, watchdog: StageWatchdog
) -> torch.device:
    """Create the process group: gloo connects all ranks now, NCCL in the first collective."""
    watchdog.begin("group")
    on_gpu = plan.backend == "nccl" or (
        not plan.backend and torch.cuda.is_available() and dist.is_nccl_available()
    )
    backend = "nccl" if on_gpu else "gloo"
    which = plan.rank if plan.device is None else plan.device
    device = (
        torch.device("cuda", which % max(torch.cuda.device_count(), 1))
        if on_gpu
        else torch.device("cpu")
    )
    if on_gpu:
        torch.cuda.set_device(device)
    rank = plan.rank if processes > 1 else 0
    limit = timedelta(seconds=plan.limit_s)
    dist.init_process_group(backend, store=store, rank=rank, world_size=processes, timeout=limit)
    watchdog.done(
        SmokeTestStage(
            name="group", processes=processes, took_s=watchdog.elapsed_s(), detail=backend
        )
    )
    return device


def _barrier(processes: int, watchdog: StageWatchdog) -> None:
    watchdog.begin("barrier")
    dist.barrier()
    watchdog.done(SmokeTestStage(name="barrier", processes=processes, took_s=watchdog.elapsed_s()))


def _all_reduce(
    plan: SmokeTestPlan, processes: int, device: torch.device, watchdog: StageWatchdog
) -> None:
    """All-reduce data with known sums, in growing sizes; each size has the full limit."""
    timings: list[StageTiming] = []
    began = time.monotonic()
    for size_bytes in plan.sizes_bytes:
        watchdog.begin(f"all-reduce of {_size(size_bytes)}")
        pattern = (torch.arange(max(size_bytes // 4, 1), dtype=torch.float32) % _PERIOD).to(device)
        own_data = pattern + (plan.rank if processes > 1 else 0)
        expected = pattern * processes + processes * (processes - 1) / 2
        took = []
        for _ in range(_ROUNDS):
            summed = own_data.clone()
            start = time.perf_counter()
            dist.all_reduce(summed)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            took.append(time.perf_counter() - start)
            _check(summed, expected)
        timings.append(StageTiming(size_bytes, min(took)))
    detail = ", ".join(
        f"{_size(each.size_bytes)} in {each.best_s * 1e3:.2f} ms"
        for each in (timings[0], timings[-1])
    )
    took_s = round(time.monotonic() - began, 4)
    watchdog.done(
        SmokeTestStage(
            name="all-reduce",
            processes=processes,
            took_s=took_s,
            detail=detail,
            timings=tuple(timings),
        )
    )


def _check(summed: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare the sums. Raises StageFailed."""
    if not torch.equal(summed, expected):
        wrong = (summed != expected).nonzero().flatten()
        at = int(wrong[0])
        first = f"element {at} is {float(summed[at])} instead of {float(expected[at])}"
        raise StageFailed(f"{len(wrong)} of {summed.numel()} sums are wrong: {first}")


def _leave(plan: SmokeTestPlan, processes: int, watchdog: StageWatchdog) -> None:
    """Leave when all ranks have finished: one that leaves earlier looks like a dead rank."""
    watchdog.begin("end")
    watchdog.wait_for_all()
    if processes == plan.world:
        watchdog.leave()


def _size(size_bytes: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:g} {name}"
    return f"{size_bytes} B"


def _first_line(error: Exception) -> str:
    """Return the first line of a torch error, without C++ source locations."""
    line = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return _SOURCE_LOCATION.sub("", line)[:300]
