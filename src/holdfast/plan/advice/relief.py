"""Changes for a run that is out of memory, with the bytes they save and the speed they cost.

The memory and time models are evaluated for every single change. If an error states the missing
bytes, a change must save at least those: they were measured, unlike the memory model.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.plan.advice.fitting import (
    FittingChange,
    MemoryModel,
    find_fitting_changes,
    iter_changes,
)
from holdfast.plan.memory.estimate import MemoryEstimate, MemoryFit
from holdfast.plan.setup import TrainingSetup
from holdfast.plan.step_time.estimate import StepTime

#: Returns the step time of a setup on as many GPUs as it has ranks.
StepTimeModel = Callable[[TrainingSetup], StepTime]
#: Least saving worth mentioning, as a share of a GPU's memory need.
_MIN_SAVING = 1 / 100
#: Speeds that differ by less are considered equal.
_SPEED_RESOLUTION = 1 / 100
#: Suggest no more than this many times the available GPUs.
_MAX_GPU_FACTOR = 4


class ReliefOption(msgspec.Struct, frozen=True, kw_only=True):
    """One change, which saves bytes on each GPU; ``sufficient``: it suffices alone.

    ``slowdown``: the lost share of a GPU's throughput, below 0 for a gain, None if unknown.
    """

    change: FittingChange
    saved: int
    slowdown: float | None
    sufficient: bool


class MemoryRelief(msgspec.Struct, frozen=True, kw_only=True):
    """The run as it is, the missing bytes (None: unknown), and possible changes.

    ``combined``: changes to apply one after the other if none suffices alone.
    """

    memory: MemoryEstimate
    step: StepTime | None
    missing_bytes: int | None
    options: tuple[ReliefOption, ...]
    combined: tuple[FittingChange, ...] = ()


def find_memory_relief(
    memory_model: MemoryModel,
    time_model: StepTimeModel,
    setup: TrainingSetup,
    missing_bytes: int | None = None,
) -> MemoryRelief:
    """Return changes that save memory: sufficient ones first, by slowdown, then the others.

    ``missing_bytes``: the bytes that the failed request lacked. That is a lower bound: the next
    requests are unknown.
    """
    before, step = memory_model(setup), _estimate_time(time_model, setup)
    options_found = []
    for change in iter_changes(memory_model, setup):
        if (
            change.saved < _MIN_SAVING * before.worst.total
            or change.setup.world_size > _MAX_GPU_FACTOR * setup.world_size
        ):
            continue
        enough = change.memory.fit is MemoryFit.FITS and change.saved >= (missing_bytes or 0)
        after = _estimate_time(time_model, change.setup)
        lost = (
            1 - after.tokens_per_s_per_gpu / step.tokens_per_s_per_gpu if step and after else None
        )
        options_found.append(
            ReliefOption(change=change, saved=change.saved, slowdown=lost, sufficient=enough)
        )
    options = tuple(sorted(options_found, key=_sort_key))
    combined = (
        ()
        if any(option.sufficient for option in options)
        else find_fitting_changes(memory_model, setup).combined
    )
    return MemoryRelief(
        memory=before, step=step, missing_bytes=missing_bytes, options=options, combined=combined
    )


def _sort_key(option: ReliefOption) -> tuple[bool, int, float]:
    """Order equally slow options by saving; unknown slowdowns are last."""
    slowdown = (
        round(max(option.slowdown, 0.0) / _SPEED_RESOLUTION)
        if option.slowdown is not None
        else 1 << 30
    )
    return not option.sufficient, slowdown, -option.saved


def _estimate_time(time_model: StepTimeModel, setup: TrainingSetup) -> StepTime | None:
    try:
        return time_model(setup)
    except InvalidValue:
        return None
