"""Time a call repeatedly, with one clock reading per call and nothing else in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.distributed as dist

from holdfast.core.measurements import IterationTiming

Call = Callable[[], object]


def time_calls(call: Call, calls: int, device: torch.device) -> list[float]:
    """Return the durations in seconds of consecutive calls, on a GPU by CUDA events."""
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
    """Time with CUDA events between calls, because calls are only queued."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]


def synchronize(device: torch.device) -> None:
    """Wait until the GPU has finished all work; does nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def gather_timing(
    times: list[float], wrong: int | None, group: dist.ProcessGroup, device: torch.device
) -> IterationTiming:
    """Return the timing over all ranks; the same on each."""
    size = dist.get_world_size(group)
    own = torch.tensor(
        [*times, -1.0 if wrong is None else float(wrong)], dtype=torch.float64, device=device
    )
    all_times = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(all_times, own, group=group)
    table = torch.stack(all_times).cpu()
    seconds, counts = table[:, :-1].flatten(), table[:, -1]
    p50, p90, p99 = torch.quantile(
        _sample(seconds), torch.tensor([0.5, 0.9, 0.99], dtype=torch.float64)
    ).tolist()
    return IterationTiming(
        mean_s=float(seconds.mean()),
        min_s=float(seconds.min()),
        p50_s=p50,
        p90_s=p90,
        p99_s=p99,
        max_s=float(seconds.max()),
        calls=seconds.numel(),
        wrong=None if wrong is None else int(counts.sum()),
    )


def _sample(seconds: torch.Tensor) -> torch.Tensor:
    """Return an even sample that torch's quantile accepts (16 M values)."""
    return seconds[:: seconds.numel() // (1 << 24) + 1]
