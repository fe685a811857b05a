"""How fast this rank is, and how much fits into its memory: measured by its own training step, and told to all."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import msgspec
import torch
import torch.distributed as dist

from holdfast.errors import BadValue
from holdfast.plan.speeds import ALIKE, Speed, Speeds
from holdfast.runtime.evaluate.local import is_out_of_memory
from holdfast.runtime.hetero.telling import alone, everyone, ranks_of
from holdfast.runtime.recorder import phase

Step = Callable[[int], object]
#: For the ranks to come together, beside the measuring itself.
_BUDGET_S = 600.0


class _Told(msgspec.Struct, frozen=True):
    """What one rank found, or why it found nothing."""

    speed: Speed | None
    error: str = ""


def probe_speed(  # noqa: PLR0913 - one line of a script, in which each stands with its name
    step: Step,
    most: int,
    *,
    rounds: int = 5,
    limit_s: float = 60.0,
    headroom: float = 0.1,
    device: torch.device | str | None = None,
    alike: float = ALIKE,
    group: dist.ProcessGroup | None = None,
    timeout: float | str | None = None,
) -> Speeds:
    """How long ``step(n)`` takes on each rank of ``group``, for micro-batches of n = 1, 2, 4, … ``most`` samples.

    ``step`` makes the forward and backward of n samples **without a collective**, as ranks make different numbers of
    calls: with the bare module, before DDP, FSDP or DeepSpeed get it, or under ``no_sync`` (DDP). Each size is run once
    to warm up and ``rounds`` times for the median. What runs out of memory, or on CUDA leaves less than the part
    ``headroom`` of it free (optimizer states and buckets come later), does not fit; the largest size that does is
    searched for. No larger size is begun where it would be over after ``limit_s`` seconds. All ranks call it, and get
    the same figures; ranks whose figures differ by less than the part ``alike`` are one kind.

    Raises:
        BadValue: ``most`` or ``rounds`` is less than 1, not one sample fits somewhere, or another rank's step failed.
        Exception: this rank's own step failed, not for want of memory.
        CollectiveTimeout, CollectiveFailed, GroupBroken: the ranks did not come together to tell.
    """
    where = device_of(device)
    failure: Exception | None = None
    speed = None
    with phase("probing speeds", _BUDGET_S + 2 * limit_s):  # the slowest rank may take longer by that
        try:
            if most < 1 or rounds < 1:
                raise BadValue("probe_speed", why=f"{most} samples in {rounds} rounds make no sense")  # noqa: TRY301
            own = 0 if alone() else dist.get_rank()
            speed = _Probe(step, most, rounds, limit_s, headroom, where).run(own)
        except Exception as error:  # noqa: BLE001 - the user's step's; the others have to know, and it is raised below
            failure = error
        mine = _Told(speed, f"{type(failure).__name__}: {failure}" if failure is not None else "")
        told = everyone(mine, _Told, group, timeout=timeout)
    if failure is not None:
        raise failure
    found = []
    for rank, each in zip(ranks_of(group), told, strict=True):
        if each.speed is None:
            raise BadValue(f"the speed of rank {rank}", why=f"its step failed: {each.error}")
        found.append(each.speed)
    return Speeds(tuple(found), alike)


class _Probe:
    """The measurements of one rank."""

    def __init__(
        self, step: Step, most: int, rounds: int, limit_s: float, headroom: float, device: torch.device
    ) -> None:
        self._step, self._most, self._rounds = step, most, rounds
        self._until = time.perf_counter() + limit_s
        self._limit_s, self._headroom, self._device = limit_s, headroom, device
        self._times: dict[int, float] = {}
        self._limited = ""

    def run(self, rank: int) -> Speed:
        """Twice as many samples each time; once something did not fit, half way between that and what did."""
        fits, fails = 0, self._most + 1
        while fits + 1 < fails:
            size = min(max(2 * fits, 1), self._most) if fails > self._most else (fits + fails) // 2
            if self._no_time(size):
                break
            if self._fits(size):
                fits = size
            else:
                fails, self._limited = size, f"a micro-batch of {size} does not fit into memory"
        sizes = tuple(sorted(self._times))
        return Speed(rank, name_of(self._device), sizes, tuple(self._times[each] for each in sizes), self._limited)

    def _no_time(self, size: int) -> bool:
        """Whether a size would be over too late, as far as the sizes before it tell; the first is always tried."""
        if not self._times:
            return False
        largest = max(self._times)
        expected_s = self._times[largest] * size / largest * 2  # once to warm up, once to measure
        late = time.perf_counter() + expected_s > self._until
        if late:
            self._limited = f"the {self._limit_s:g} s were over before a micro-batch of {size}"
        return late

    def _fits(self, size: int) -> bool:
        try:
            self._times[size] = self._time(size)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            short = True
        else:
            short = self._is_tight()
        if short:
            self._times.pop(size, None)
            gc.collect()
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
        return not short

    def _time(self, size: int) -> float:
        """Seconds of the step, the median of as many rounds as there is time for."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        self._step(size)
        taken: list[float] = []
        while len(taken) < self._rounds and (not taken or time.perf_counter() < self._until):
            _settle(self._device)
            began = time.perf_counter()
            self._step(size)
            _settle(self._device)
            taken.append(time.perf_counter() - began)
        return statistics.median(taken)

    def _is_tight(self) -> bool:
        if self._device.type != "cuda":
            return False
        total = torch.cuda.get_device_properties(self._device).total_memory
        return torch.cuda.max_memory_allocated(self._device) > (1 - self._headroom) * total


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_of(given: torch.device | str | None) -> torch.device:
    """The one given; else the current GPU where there is one."""
    if given is not None:
        return torch.device(given)
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def name_of(device: torch.device) -> str:
    """What the device is called; a name for people, by which nothing is decided."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
