"""Measure with the training step how fast each rank is and how much fits into its memory."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import msgspec
import torch
import torch.distributed as dist

from holdfast.core.errors import InvalidValue
from holdfast.core.keyword_hints import suggest_keywords
from holdfast.recorder import phase
from holdfast.training.evaluate.local import is_out_of_memory
from holdfast.training.heterogeneous.exchange import exchange_values, is_single_process, ranks_of
from holdfast.training.heterogeneous.gpu_kinds import SIMILARITY, RankSpeed, RankSpeeds
from holdfast.training.renamed_keywords import renamed_keywords

ProbeStep = Callable[[int], object]
#: Time budget for the ranks to synchronize, in addition to the measurement.
_MEETING_BUDGET_S = 600.0


class _ProbeResult(msgspec.Struct, frozen=True):
    """The measurement of one rank, or why it failed."""

    speed: RankSpeed | None
    error: str = ""


@renamed_keywords(most="max_samples")
@suggest_keywords
def probe_speed(  # noqa: PLR0913 - keyword arguments of a script
    step: ProbeStep,
    max_samples: int,
    *,
    rounds: int = 5,
    limit_s: float = 60.0,
    headroom: float = 0.1,
    device: torch.device | str | None = None,
    alike: float = SIMILARITY,
    group: dist.ProcessGroup | None = None,
    timeout: float | str | None = None,
) -> RankSpeeds:
    """Measure ``step(n)`` on each rank of ``group``, for n = 1, 2, 4, … ``max_samples`` samples.

    ``step`` runs forward and backward of n samples **without a collective**, because ranks make
    different numbers of calls: use the bare module, before DDP, FSDP or DeepSpeed wrap it, or
    ``no_sync`` (DDP). Each size runs once to warm up and ``rounds`` times for the median. A size
    does not fit if it runs out of memory, or on CUDA leaves less than the fraction ``headroom``
    free (optimizer states and buckets come later); the largest that fits is found by bisection. No
    size is started that would exceed ``limit_s`` seconds. All ranks call this and get the same
    result; ranks that differ by less than the fraction ``alike`` are one kind.

    Raises:
        InvalidValue: ``max_samples`` or ``rounds`` is less than 1, not even one sample fits on a
            rank, or another rank's step failed.
        Exception: this rank's own step failed, other than out of memory.
        CollectiveTimeout, CollectiveFailed, GroupBroken: the exchange failed.
    """
    probe_device = device_of(device)
    failure: Exception | None = None
    speed = None
    # The slowest rank may take 2 * limit_s longer.
    with phase("probing speeds", _MEETING_BUDGET_S + 2 * limit_s):
        try:
            if max_samples < 1 or rounds < 1:
                raise InvalidValue(  # noqa: TRY301
                    "probe_speed",
                    why=f"max_samples={max_samples} and rounds={rounds} must be positive",
                )
            own = 0 if is_single_process() else dist.get_rank()
            speed = _Probe(step, max_samples, rounds, limit_s, headroom, probe_device).run(own)
        except Exception as error:  # noqa: BLE001 - reported to all ranks, and raised below
            failure = error
        mine = _ProbeResult(
            speed, f"{type(failure).__name__}: {failure}" if failure is not None else ""
        )
        results = exchange_values(mine, _ProbeResult, group, timeout=timeout)
    if failure is not None:
        raise failure
    speeds = []
    for rank, each in zip(ranks_of(group), results, strict=True):
        if each.speed is None:
            raise InvalidValue(f"the speed of rank {rank}", why=f"its step failed: {each.error}")
        speeds.append(each.speed)
    return RankSpeeds(tuple(speeds), alike)


class _Probe:
    """The measurement of one rank."""

    def __init__(
        self,
        step: ProbeStep,
        max_samples: int,
        rounds: int,
        limit_s: float,
        headroom: float,
        device: torch.device,
    ) -> None:
        self._step, self._most, self._rounds = step, max_samples, rounds
        self._deadline = time.perf_counter() + limit_s
        self._limit_s, self._headroom, self._device = limit_s, headroom, device
        self._times: dict[int, float] = {}
        self._limited = ""

    def run(self, rank: int) -> RankSpeed:
        """Double the size; after one that does not fit, bisect."""
        fits, fails = 0, self._most + 1
        while fits + 1 < fails:
            size = min(max(2 * fits, 1), self._most) if fails > self._most else (fits + fails) // 2
            if self._exceeds_limit(size):
                break
            if self._fits(size):
                fits = size
            else:
                fails, self._limited = size, f"a micro-batch of {size} does not fit into memory"
        sizes = tuple(sorted(self._times))
        return RankSpeed(
            rank,
            device_name(self._device),
            sizes,
            tuple(self._times[each] for each in sizes),
            self._limited,
        )

    def _exceeds_limit(self, size: int) -> bool:
        """Return whether a size is predicted to exceed the limit; never for the first size."""
        if not self._times:
            return False
        largest = max(self._times)
        expected_s = self._times[largest] * size / largest * 2  # one warm-up and one measurement
        is_late = time.perf_counter() + expected_s > self._deadline
        if is_late:
            self._limited = (
                f"the limit of {self._limit_s:g} s was reached before a micro-batch of {size}"
            )
        return is_late

    def _fits(self, size: int) -> bool:
        try:
            self._times[size] = self._time(size)
        except Exception as error:  # noqa: BLE001, RUF100
            if not is_out_of_memory(error):
                raise
            out_of_memory = True
        else:
            out_of_memory = self._is_tight()
        if out_of_memory:
            self._times.pop(size, None)
            gc.collect()
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
        return not out_of_memory

    def _time(self, size: int) -> float:
        """Return the median step time in seconds, of as many rounds as time allows."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        self._step(size)
        taken: list[float] = []
        while len(taken) < self._rounds and (not taken or time.perf_counter() < self._deadline):
            _synchronize(self._device)
            began = time.perf_counter()
            self._step(size)
            _synchronize(self._device)
            taken.append(time.perf_counter() - began)
        return statistics.median(taken)

    def _is_tight(self) -> bool:
        if self._device.type != "cuda":
            return False
        total = torch.cuda.get_device_properties(self._device).total_memory
        return torch.cuda.max_memory_allocated(self._device) > (1 - self._headroom) * total


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_of(device: torch.device | str | None) -> torch.device:
    """Return the given device, or else the current GPU, or else the CPU."""
    if device is not None:
        return torch.device(device)
    return (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


def device_name(device: torch.device) -> str:
    """Return the device's display name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
