"""Search the layouts: per shape and sharding the fastest that fits, else the smallest.

Shapes are visited in the order of a lower bound: the step time without data-parallel communication
and recomputation. A shape, or a sharding of it, is skipped if its bound is above the reported
layouts and not well below the known times of any of its degrees. The result is unaffected, and the
best rejected layouts are known within the model's error.

Memory options are ordered by their cost in time. With micro-batches in increasing order, the first
option that fits is the fastest, and it never becomes milder as they grow: each search starts at the
level where the previous one ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import msgspec

from holdfast.plan.hardware import Cluster
from holdfast.plan.layout import space
from holdfast.plan.layout.space import LayoutOptions, LayoutShape, RejectedDegree, ShardingChoice
from holdfast.plan.memory.estimate import MemoryEstimate, MemoryFit, estimate_memory
from holdfast.plan.models import Transformer
from holdfast.plan.setup import (
    ActivationCheckpointing,
    LossKernel,
    PipelineSchedule,
    ShardingStrategy,
    TrainingSetup,
)
from holdfast.plan.step_time.estimate import StepTime, estimate_step_time
from holdfast.plan.step_time.rates import DEFAULT_CONDITIONS, Conditions
from holdfast.plan.step_time.traffic import TrafficKind
from holdfast.plan.step_time.work import micro_batch_time

_GIB = 1 << 30
#: Stop increasing the micro-batch after this many larger ones that were no faster.
_MAX_SLOWER_STEPS = 2
#: Communication that is exposed under any sharding.
_ANY_SHARDING = ShardingChoice(ShardingStrategy.FSDP2, 1, reshard=True)
_SERIAL_KINDS = (TrafficKind.TENSOR, TrafficKind.CONTEXT, TrafficKind.EXPERT, TrafficKind.PIPELINE)


#: Loss kernel and checkpointing level.
MemoryOption = tuple[LossKernel, ActivationCheckpointing]
#: Pipeline schedule, and chunks per stage.
ScheduleChoice = tuple[PipelineSchedule, int]


class LayoutCandidate(NamedTuple):
    """A layout that fits, with its memory and step time."""

    shape: LayoutShape
    sharding: ShardingChoice
    setup: TrainingSetup
    memory: MemoryEstimate
    step: StepTime


class SmallestLayout(NamedTuple):
    """The layout that needs the least memory of those that do not fit."""

    setup: TrainingSetup
    memory: MemoryEstimate


class LayoutQuery(NamedTuple):
    """What to search for, made by :func:`make_query`. ``base``: settings common to all layouts.

    ``memory_options``: ordered by their cost in time; ``smallest_option``: the one that needs the
    least memory. ``accepted``: results that count as fitting.
    """

    model: Transformer
    cluster: Cluster
    global_batch: int
    base: TrainingSetup
    options: LayoutOptions
    conditions: Conditions
    memory_options: tuple[MemoryOption, ...]
    smallest_option: MemoryOption
    accepted: tuple[MemoryFit, ...] = (MemoryFit.FITS,)

    @property
    def gpu_memory(self) -> int:
        """Return the bytes of a GPU."""
        return round(self.cluster.gpu.memory_gib * _GIB)

    def estimate_memory(self, setup: TrainingSetup) -> MemoryEstimate:
        """Return the memory of each rank on the cluster."""
        return estimate_memory(
            self.model, setup, self.gpu_memory, self.cluster.host_memory_per_rank
        )

    def schedule_choices(self, shape: LayoutShape) -> list[ScheduleChoice]:
        """Return schedules and chunks that meet the batch exactly; empty if there are none."""
        per_rank, remainder = divmod(self.global_batch, shape.data)
        return (
            []
            if remainder or per_rank < shape.pipeline
            else list(space.schedule_choices(self.model, shape, per_rank, self.options))
        )

    def sharding_choices(self, shape: LayoutShape) -> list[ShardingChoice]:
        """Return the shardings that the shape allows."""
        return list(space.sharding_choices(shape, self.cluster, self.options, self.base))

    def allows(self, shape: LayoutShape) -> bool:
        """Return whether the shape may be reported."""
        return space.is_allowed(shape, self.cluster, self.options)


class SearchState:
    """Results so far: the fastest by shape, strategy and replicas, and misfits by axis value."""

    def __init__(self) -> None:
        self.fastest: dict[tuple[LayoutShape, str, int], LayoutCandidate] = {}
        self.smallest: dict[tuple[str, object], SmallestLayout] = {}
        self.rejected_degrees: list[RejectedDegree] = []
        #: Axis values with which the batch cannot be met, unless some layout has them.
        self.unmet_values: set[tuple[str, object]] = set()
        #: Seconds of the fastest layout by axis value, and by reportable shape.
        self.seconds: dict[tuple[str, object], float] = {}
        self.seconds_by_shape: dict[LayoutShape, float] = {}
        self.tried = 0
        self.fitting = 0

    def record_fit(self, candidate: LayoutCandidate, *, allowed: bool) -> None:
        """Record a candidate if it is the fastest of its shape and sharding.

        Of equally fast ones, the first stays.
        """
        self.fitting += 1
        key = candidate.shape, candidate.sharding.strategy.value, candidate.sharding.replicas
        known, seconds = self.fastest.get(key), candidate.step.seconds
        if known is not None and known.step.seconds <= seconds:
            return
        self.fastest[key] = candidate
        for axis in axis_values(candidate.shape, candidate.setup):
            self.seconds[axis] = min(seconds, self.seconds.get(axis, inf))
        if allowed:
            self.seconds_by_shape[candidate.shape] = min(
                seconds, self.seconds_by_shape.get(candidate.shape, inf)
            )

    def cutoff_s(self, options: LayoutOptions) -> float:
        """Return the seconds above which a layout is not worth reporting."""
        best = sorted(self.seconds_by_shape.values())[: options.max_results]
        return (
            max(best[-1], best[0] * (1 + options.time_error))
            if len(best) == options.max_results
            else inf
        )

    def record_misfit(
        self, values: Sequence[tuple[str, object]], memory: MemoryEstimate, setup: TrainingSetup
    ) -> None:
        """Record a layout that does not fit if it is the smallest of an axis value."""
        total = memory.worst.total
        for axis in values:
            known = self.smallest.get(axis)
            if known is None or total < known.memory.worst.total:
                self.smallest[axis] = SmallestLayout(setup, memory)


def axis_values(shape: LayoutShape, setup: TrainingSetup) -> tuple[tuple[str, object], ...]:
    """Return the axis values that group layouts; the last one covers all."""
    return (
        ("strategy", setup.strategy),
        ("tensor", shape.tensor),
        ("pipeline", shape.pipeline),
        ("context", shape.context),
        ("expert", shape.expert),
        ("all", None),
    )


def search_layouts(query: LayoutQuery) -> SearchState:
    """Search everything that the query allows."""
    state = SearchState()
    shapes, state.rejected_degrees = space.enumerate_shapes(
        query.model, query.cluster, query.base.sequence, query.options
    )
    bounded = []
    for shape in shapes:
        schedules = query.schedule_choices(shape)
        if schedules:
            bounded.append((_lower_bound(query, shape, schedules, None), shape, schedules))
        else:
            state.unmet_values.update(axis_values(shape, query.base)[1:-1])
    for bound, shape, schedules in sorted(bounded):
        for sharding in query.sharding_choices(shape):
            if _can_improve(query, shape, sharding, bound, state) and _can_improve(
                query, shape, sharding, _lower_bound(query, shape, schedules, sharding), state
            ):
                _search_sharding(query, shape, sharding, schedules, state)
    return state


def _can_improve(
    query: LayoutQuery,
    shape: LayoutShape,
    sharding: ShardingChoice,
    bound: float,
    state: SearchState,
) -> bool:
    """Return whether a layout with this lower bound could be reported or lead an axis value."""
    if query.allows(shape) and bound < state.cutoff_s(query.options):
        return True
    values = (("strategy", sharding.strategy), *axis_values(shape, query.base)[1:-1])
    return any(
        bound * (1 + query.options.time_error) < state.seconds.get(axis, inf) for axis in values
    )


def _lower_bound(
    query: LayoutQuery,
    shape: LayoutShape,
    schedules: Sequence[ScheduleChoice],
    sharding: ShardingChoice | None,
    level: int = 0,
) -> float:
    """Return a lower bound of the step time: largest micro-batches, bubble of the smallest.

    Without ``sharding`` it holds for any sharding; ``level`` is the least memory option.
    """
    per_rank = query.global_batch // shape.data
    size = space.list_divisors(per_rank, space.MAX_MICRO_BATCH)[-1]
    schedule_choice, batches, option = (
        (PipelineSchedule.ONE_F_ONE_B, 1),
        (size, per_rank // size),
        query.memory_options[level],
    )
    setup = space.build_setup(
        query.base, shape, sharding or _ANY_SHARDING, schedule_choice, batches, option
    )
    step = estimate_step_time(query.model, setup, query.cluster, query.conditions)
    busy_s = step.compute + sum(step.exposed.get(part, 0.0) for part in _SERIAL_KINDS)
    bubble_divisor = max(
        3 if schedule is PipelineSchedule.ZERO_BUBBLE else chunks for schedule, chunks in schedules
    )
    bubble = busy_s * (shape.pipeline - 1) / bubble_divisor / per_rank
    return busy_s + bubble if sharding is None else step.seconds - step.bubble + bubble


def make_query(
    model: Transformer,
    cluster: Cluster,
    global_batch: int,
    base: TrainingSetup,
    options: LayoutOptions,
    conditions: Conditions = DEFAULT_CONDITIONS,
) -> LayoutQuery:
    """Return the query, with memory options ordered by their cost in time, chunked loss first."""
    levels = [
        level
        for level in options.recompute_levels
        if level is not ActivationCheckpointing.SELECTIVE or not base.flash
    ]

    def recompute_s(level: ActivationCheckpointing) -> float:
        setup = msgspec.structs.replace(base, recompute=level)
        return micro_batch_time(model, setup, cluster.gpu, conditions).recompute

    sorted_levels = sorted(levels or [ActivationCheckpointing.NONE], key=recompute_s)
    loss = LossKernel.CHUNKED if base.loss is LossKernel.EAGER else base.loss
    memory_options = tuple(
        dict.fromkeys([(base.loss, sorted_levels[0]), *((loss, level) for level in sorted_levels)])
    )
    smallest = (loss, levels[-1] if levels else ActivationCheckpointing.NONE)
    return LayoutQuery(
        model, cluster, global_batch, base, options, conditions, memory_options, smallest
    )


def any_layout_fits(query: LayoutQuery) -> bool:
    """Return whether any layout fits, tested with the smallest of each shape and sharding."""
    for shape in space.enumerate_shapes(
        query.model, query.cluster, query.base.sequence, query.options
    )[0]:
        for schedule in query.schedule_choices(shape) if query.allows(shape) else ():
            batches = next(
                space.micro_batch_splits(shape, schedule[0], query.global_batch // shape.data)
            )
            for sharding in query.sharding_choices(shape):
                setup = space.build_setup(
                    query.base, shape, sharding, schedule, batches, query.smallest_option
                )
                if query.estimate_memory(setup).fit is MemoryFit.FITS:
                    return True
    return False


def _search_sharding(
    query: LayoutQuery,
    shape: LayoutShape,
    sharding: ShardingChoice,
    schedules: Sequence[ScheduleChoice],
    state: SearchState,
) -> None:
    """Search one shape and sharding with all schedules.

    A single micro-batch per step is searched separately, as several keep gradients between them.
    """
    per_rank = query.global_batch // shape.data
    for several in (True, False):
        rows = [
            (
                schedule,
                [
                    split
                    for split in space.micro_batch_splits(shape, schedule[0], per_rank)
                    if (split[1] > 1) == several
                ],
            )
            for schedule in schedules
        ]
        rows = [row for row in rows if row[1]]
        level = _first_fitting_level(query, shape, sharding, rows[0][1][0], state) if rows else None
        if level is None:
            continue
        if level and not _can_improve(
            query, shape, sharding, _lower_bound(query, shape, schedules, sharding, level), state
        ):
            continue
        for schedule, micros in rows:
            _search_micro_batches(query, (shape, sharding, schedule), micros, level, state)


def _first_fitting_level(
    query: LayoutQuery,
    shape: LayoutShape,
    sharding: ShardingChoice,
    batches: tuple[int, int],
    state: SearchState,
) -> int | None:
    """Return the mildest memory option with which the smallest micro-batch fits in 1F1B.

    None if there is none.
    """
    for level, option in enumerate((query.smallest_option, *query.memory_options), -1):
        setup = space.build_setup(
            query.base, shape, sharding, (PipelineSchedule.ONE_F_ONE_B, 1), batches, option
        )
        memory = query.estimate_memory(setup)
        state.tried += 1
        if memory.fit in query.accepted and level >= 0:
            return level
        if memory.fit not in query.accepted and level < 0:
            state.record_misfit(
                axis_values(shape, setup)[: None if query.allows(shape) else -1], memory, setup
            )
            return None
    return None


def _search_micro_batches(
    query: LayoutQuery,
    combination: tuple[LayoutShape, ShardingChoice, ScheduleChoice],
    splits: Sequence[tuple[int, int]],
    level: int,
    state: SearchState,
) -> None:
    """Search increasing micro-batches of one shape, sharding and schedule, from ``level`` on."""
    shape, sharding, schedule = combination
    allowed, slower, best = query.allows(shape), 0, 0.0
    for split in splits:
        while level < len(query.memory_options):
            setup = space.build_setup(
                query.base, shape, sharding, schedule, split, query.memory_options[level]
            )
            memory = query.estimate_memory(setup)
            state.tried += 1
            if memory.fit in query.accepted:
                break
            level += 1
        else:
            state.record_misfit(axis_values(shape, setup)[: None if allowed else -1], memory, setup)
            return
        step = estimate_step_time(query.model, setup, query.cluster, query.conditions)
        state.record_fit(LayoutCandidate(shape, sharding, setup, memory, step), allowed=allowed)
        slower = slower + 1 if step.tokens_per_s <= best else 0
        best = max(best, step.tokens_per_s)
        if slower == _MAX_SLOWER_STEPS:
            return
