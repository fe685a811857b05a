"""What a framework costs: time of a step, memory, communication, start-up, a checkpoint. All ranks call all of it."""

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
WARM = 3  # first steps whose times do not count: memory is got, kernels are chosen, ZeRO-3 learns the order of layers


class Meter:
    """Made before the model, so that all memory from then on is that of training."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.began_s = time.time()
        self.ready_s = self.began_s
        self.first_s = self.began_s
        self.before = memory_now(device)
        self.times: list[float] = []

    def ready(self) -> None:
        """The framework has the model."""
        self.ready_s = time.time()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around a step."""
        began = time.perf_counter()
        yield
        self._wait()
        self.times.append(time.perf_counter() - began)
        if len(self.times) == 1:
            self.first_s = time.time()
        if len(self.times) == WARM:
            forget_peak(self.device)

    def result(self, samples: int) -> dict[str, Any]:
        """Figures of the whole job; ``samples`` of a rank in a step. Memory is that of the rank with the most."""
        counted = self.times[WARM:] or self.times
        started_s = psutil.Process().create_time()
        peak = max(everywhere(peak_memory(self.device) - self.before))
        step_s = statistics.median(everywhere(statistics.median(counted)))
        startup = {
            "import": max(everywhere(self.began_s - started_s)),
            "set up": max(everywhere(self.ready_s - self.began_s)),
            "first step": max(everywhere(self.first_s - self.ready_s)),
        }
        return {
            "step_s": step_s,
            "samples_per_s": samples * dist.get_world_size() / step_s,
            "peak_bytes": int(peak),
            "startup_s": max(everywhere(self.first_s - started_s)),
            "startup": startup,
        }

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def communication(step: Callable[[], object], device: torch.device, steps: int = 2) -> dict[str, float]:
    """Shares of a step in which a collective is under way (``busy``), and nothing else is meanwhile (``exposed``).

    On a GPU, of kernels; on a CPU, of operators. A rank that waits for another one in a collective communicates.
    """
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    with profile(activities=activities, acc_events=True) as profiled:
        for _ in range(steps):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    events = [(each.time_range.start, each.time_range.end, *kind(each)) for each in profiled.events()]
    moving = [(start, end) for start, end, moves, _ in events if moves]
    computing = [(start, end) for start, end, _, computes in events if computes]
    span = max(end for _, end, *_ in events) - min(start for start, *_ in events)
    shares = {
        "busy": length(moving) / span,
        "exposed": (length([*moving, *computing]) - length(computing)) / span,
    }
    return {name: statistics.mean(everywhere(share)) for name, share in shares.items()}


def kind(event: Any) -> tuple[bool, bool]:
    """A profiler's event is communication, and is computation; most are neither."""
    if event.device_type == DeviceType.CUDA:
        kernel = not event.is_user_annotation
        moves = kernel and event.name.startswith("nccl")
        return moves, kernel and not moves
    cuda = torch.cuda.is_available()  # then operators only start kernels
    return not cuda and event.name.startswith("gloo:"), not cuda and event.name.startswith("aten::")


def length(intervals: Iterable[Interval]) -> float:
    """How long at least one of them lasts."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def checkpoint(save: Callable[[Path], None], folder: Path) -> dict[str, float]:
    """Seconds until all ranks have saved and the bytes are on the disk, and how many they are, in how many files."""
    dist.barrier()
    began = time.perf_counter()
    save(folder)
    dist.barrier()
    files = [each for each in folder.rglob("*") if each.is_file()]
    if dist.get_rank() == 0:
        for each in files:
            sync(each)
    dist.barrier()
    taken = max(everywhere(time.perf_counter() - began))
    return {"seconds": taken, "bytes": sum(each.stat().st_size for each in files), "files": len(files)}


def sync(file: Path) -> None:
    """No framework does it, and who does not cannot say that a checkpoint is written."""
    opened = os.open(file, os.O_RDONLY)
    os.fsync(opened)
    os.close(opened)


def everywhere(value: float) -> list[float]:
    """The figure of every rank."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def memory_now(device: torch.device) -> int:
    """Bytes that this rank has: of the GPU what tensors take, of the host what is resident."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else psutil.Process().memory_info().rss


def peak_memory(device: torch.device) -> int:
    """The most since :func:`forget_peak`. Of the GPU it is what the allocator reserved: that has to fit."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def forget_peak(device: torch.device) -> None:
    """The peak is what there is now, once the C library has given back what was freed, as the unshared model."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
