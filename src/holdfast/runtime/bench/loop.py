"""Takes the time of a call again and again: one reading of the clock a call, and nothing else in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.distributed as dist

from holdfast.measured import Timing

Call = Callable[[], object]


def times_of(call: Call, calls: int, device: torch.device) -> list[float]:
    """Seconds of each of so many calls, one right after the other; on a GPU by its own events."""
    return _on_device(call, calls) if device.type == "cuda" else _on_host(call, calls)


def _on_host(call: Call, calls: int) -> list[float]:
    clock = time.perf_counter
    stamps = [clock()] * (calls + 1)
    stamps[0] = clock()
    for at in range(1, calls + 1):
        call()
        stamps[at] = clock()
    return [after - before for before, after in pairwise(stamps)]


def _on_device(call: Call, calls: int) -> list[float]:
    """Calls are only queued here, so that an event between each two of them tells when the GPU came past it."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]


def settled(device: torch.device) -> None:
    """Wait until the GPU has done all that was begun; nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def gathered(times: list[float], wrong: int | None, group: dist.ProcessGroup, device: torch.device) -> Timing:
    """The timing over all ranks; the same on each."""
    size = dist.get_world_size(group)
    mine = torch.tensor([*times, -1.0 if wrong is None else float(wrong)], dtype=torch.float64, device=device)
    everyones = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(everyones, mine, group=group)
    table = torch.stack(everyones).cpu()
    seconds, counts = table[:, :-1].flatten(), table[:, -1]
    p50, p90, p99 = torch.quantile(_bounded(seconds), torch.tensor([0.5, 0.9, 0.99], dtype=torch.float64)).tolist()
    return Timing(
        mean_s=float(seconds.mean()), min_s=float(seconds.min()), p50_s=p50, p90_s=p90, p99_s=p99,
        max_s=float(seconds.max()), calls=seconds.numel(), wrong=None if wrong is None else int(counts.sum()),
    )  # fmt: skip


def _bounded(seconds: torch.Tensor) -> torch.Tensor:
    """As many as torch's quantile takes (16 M), spread evenly."""
    return seconds[:: seconds.numel() // (1 << 24) + 1]
