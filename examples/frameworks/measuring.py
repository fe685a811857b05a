"""Measure step time, memory, communication, start-up and checkpoints. Called on all ranks."""

from __future__ import annotations

import ctypes
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

Interval = tuple[float, float]
WARM = 3  # warm-up steps: memory allocation, kernel selection, ZeRO-3's layer order


class Meter:
    """Measures one training run; create it before the model, to include all training memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.began_s = time.time()
        self.ready_s = self.began_s
        self.first_s = self.began_s
        self.before = memory_now(device)
        self.times: list[float] = []

    def ready(self) -> None:
        """Record that the framework has set up the model."""
        self.ready_s = time.time()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Measure a step."""
        began = time.perf_counter()
        yield
        self._wait()
        self.times.append(time.perf_counter() - began)
        if len(self.times) == 1:
            self.first_s = time.time()
        if len(self.times) == WARM:
            reset_peak(self.device)

    def result(self, samples: int) -> dict[str, Any]:
        """Return job-wide figures for ``samples`` per rank and step; memory is the maximum."""
        counted = self.times[WARM:] or self.times
        started_s = psutil.Process().create_time()
        peak = max(gather_values(peak_memory(self.device) - self.before))
        step_s = statistics.median(gather_values(statistics.median(counted)))
        startup = {
            "import": max(gather_values(self.began_s - started_s)),
            "set up": max(gather_values(self.ready_s - self.began_s)),
            "first step": max(gather_values(self.first_s - self.ready_s)),
        }
        return {
            "step_s": step_s,
            "samples_per_s": samples * dist.get_world_size() / step_s,
            "peak_bytes": int(peak),
            "startup_s": max(gather_values(self.first_s - started_s)),
            "startup": startup,
        }

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def measure_communication(
    step: Callable[[], object], device: torch.device, steps: int = 2
) -> dict[str, float]:
    """Return fractions of a step in collectives (``busy``), and in collectives only (``exposed``).

    On a GPU, of kernels; on a CPU, of operators. Waiting for another rank in a collective counts.
    """
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    with profile(activities=activities, acc_events=True) as profiled:
        for _ in range(steps):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    events = [
        (each.time_range.start, each.time_range.end, *classify_event(each))
        for each in profiled.events()
    ]
    moving = [(start, end) for start, end, moves, _ in events if moves]
    computing = [(start, end) for start, end, _, computes in events if computes]
    span = max(end for _, end, *_ in events) - min(start for start, *_ in events)
    shares = {
        "busy": union_length(moving) / span,
        "exposed": (union_length([*moving, *computing]) - union_length(computing)) / span,
    }
    return {name: statistics.mean(gather_values(share)) for name, share in shares.items()}


def classify_event(event: Any) -> tuple[bool, bool]:
    """Return whether a profiler event is communication, and whether computation."""
    if event.device_type == DeviceType.CUDA:
        kernel = not event.is_user_annotation
        moves = kernel and event.name.startswith("nccl")
        return moves, kernel and not moves
    cuda = torch.cuda.is_available()  # then operators only start kernels
    return not cuda and event.name.startswith("gloo:"), not cuda and event.name.startswith("aten::")


def union_length(intervals: Iterable[Interval]) -> float:
    """Return the total length of the union of intervals."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def measure_checkpoint(save: Callable[[Path], None], folder: Path) -> dict[str, float]:
    """Return seconds until all ranks have saved and synced, total bytes, and files."""
    dist.barrier()
    began = time.perf_counter()
    save(folder)
    dist.barrier()
    files = [each for each in folder.rglob("*") if each.is_file()]
    if dist.get_rank() == 0:
        for each in files:
            sync_file(each)
    dist.barrier()
    duration_s = max(gather_values(time.perf_counter() - began))
    return {
        "seconds": duration_s,
        "bytes": sum(each.stat().st_size for each in files),
        "files": len(files),
    }


def sync_file(file: Path) -> None:
    """Sync a file, which no framework does; without it a checkpoint may not be on the disk."""
    opened = os.open(file, os.O_RDONLY)
    os.fsync(opened)
    os.close(opened)


def gather_values(value: float) -> list[float]:
    """Return the value of every rank."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def memory_now(device: torch.device) -> int:
    """Return the bytes of this rank: tensors on the GPU, or resident host memory."""
    return (
        torch.cuda.memory_allocated(device)
        if device.type == "cuda"
        else psutil.Process().memory_info().rss
    )


def peak_memory(device: torch.device) -> int:
    """Return the peak since :func:`reset_peak`; on the GPU, memory reserved by the allocator."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def reset_peak(device: torch.device) -> None:
    """Reset the peak, after the C library has released freed memory."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
