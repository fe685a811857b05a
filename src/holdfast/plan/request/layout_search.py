"""Find the layout of a plan that specifies none."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.plan.layout.solver import LayoutChoice, find_layouts
from holdfast.plan.layout.space import LayoutOptions
from holdfast.plan.request.plan_request import PlannedRun, PlanRequest, evaluate_setup
from holdfast.plan.request.setup import build_setup
from holdfast.plan.setup import ActivationCheckpointing

#: Sequences per step and GPU if no batch is given.
_DEFAULT_SEQUENCES_PER_GPU = 4


def needs_layout_search(request: PlanRequest) -> bool:
    """Return whether to search: no layout option, one kind of GPU, one fully trained model."""
    is_specified = (
        request.degrees
        or request.strategy
        or request.micro_batch
        or request.accumulation
        or request.schedule
    )
    return (
        not is_specified
        and len(request.clusters) == 1
        and bool(request.model.submodels)
        and request.model.is_plain
    )


def batch_or_default(request: PlanRequest) -> int:
    """Return the requested batch, or a few sequences for each GPU."""
    return request.batch or _DEFAULT_SEQUENCES_PER_GPU * request.first_cluster.gpus


def search_layout(request: PlanRequest) -> tuple[PlannedRun, LayoutChoice]:
    """Return the simplest of the fastest layouts as a run, if none fits the smallest layout.

    Raises:
        InvalidValue: no layout meets the batch exactly.
    """
    base = build_setup(
        request, request.first_cluster.gpus, 1, 1, request.recompute or ActivationCheckpointing.NONE
    )
    base = replace(base, fused_optimizer=True, bucket_views=True)  # both are free
    options = (
        LayoutOptions(recompute_levels=(request.recompute,))
        if request.recompute is not None
        else LayoutOptions()
    )
    choice = find_layouts(
        request.model.main_transformer,
        request.first_cluster,
        batch_or_default(request),
        request.sequence,
        base=base,
        options=options,
        conditions=request.conditions,
    )
    if (chosen := choice.simplest) is not None:
        return PlannedRun(
            setup=chosen.setup,
            cluster=request.first_cluster,
            memory=chosen.memory,
            step=chosen.step,
        ), choice
    if choice.shortage is None:
        return evaluate_setup(request, base), choice
    return evaluate_setup(request, choice.shortage.setup), choice
