"""What to report if no layout exists: feasible batches, changes, and sufficient GPUs."""

from __future__ import annotations

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.plan.advice.fitting import FittingChanges, find_fitting_changes
from holdfast.plan.layout import space
from holdfast.plan.layout.search import LayoutQuery, SearchState, any_layout_fits
from holdfast.plan.memory.estimate import MemoryEstimate
from holdfast.plan.setup import PipelineSchedule, TrainingSetup


class LayoutShortage(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing fits: the smallest layout, changes that make it fit, and a sufficient GPU count.

    ``gpus``: of the same kind, 2 or 3 times as many, 4 or 6 and so on; None if not even a thousand
    times as many suffice, or they could not meet the batch.
    """

    setup: TrainingSetup
    memory: MemoryEstimate
    changes: FittingChanges
    gpus: int | None


def explain_shortage(query: LayoutQuery, state: SearchState) -> LayoutShortage:
    """Explain a search that found no layout."""
    smallest = state.smallest["all", None]
    changes = find_fitting_changes(query.estimate_memory, smallest.setup)
    return LayoutShortage(
        setup=smallest.setup,
        memory=smallest.memory,
        changes=changes,
        gpus=_find_sufficient_gpus(query),
    )


def _find_sufficient_gpus(query: LayoutQuery) -> int | None:
    """Return a GPU count with which something fits, starting at twice the GPUs."""
    gpus = query.cluster.gpus
    for factor in sorted(step << power for step in (2, 3) for power in range(10)):
        try:
            if any_layout_fits(query._replace(cluster=query.cluster.resized(gpus * factor))):
                return gpus * factor
        except InvalidValue:  # beyond the supported cluster size
            return None
    return None


def require_exact_batch(query: LayoutQuery) -> None:
    """Raise an error if no layout meets the batch exactly.

    Raises:
        InvalidValue: no degrees divide the batch; the message names the nearest feasible ones.
    """
    shapes, refused = space.enumerate_shapes(
        query.model, query.cluster, query.base.sequence, query.options
    )
    model, options = query.model, query.options
    allowed_shapes = [
        shape for shape in shapes if query.allows(shape) and query.sharding_choices(shape)
    ]
    usable_shapes = [
        shape
        for shape in allowed_shapes
        if any(space.schedule_choices(model, shape, shape.pipeline, options))
    ]
    if not usable_shapes:
        messages = [
            f"{shape.axis} {shape.value}: {shape.why}"
            for shape in refused
            if getattr(options, shape.axis)
        ]
        why = (
            messages[0]
            if messages
            else f"{model.name} cannot be divided in this way over {query.cluster}"
        )
        raise InvalidValue("the requested layout", why=why)
    if any(query.schedule_choices(shape) for shape in usable_shapes):
        return
    batch = query.global_batch
    interleaved = set(options.schedules) == {PipelineSchedule.INTERLEAVED}
    units = [
        (shape.data * (shape.pipeline if interleaved else 1), shape.data * shape.pipeline)
        for shape in usable_shapes
    ]
    below = max((batch // unit * unit for unit, least in units if least <= batch), default=0)
    above = min(max(-(-batch // unit) * unit, least) for unit, least in units)
    raise InvalidValue(
        f"a batch of {batch} sequences",
        why=f"no layout of {model.name} on {query.cluster} meets it exactly",
        next_step=f"use {below} or {above}" if below else f"use {above}",
    )
