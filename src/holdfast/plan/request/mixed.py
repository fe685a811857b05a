"""Plan for GPUs of several kinds: each GPU gets a batch share that matches its speed."""

from __future__ import annotations

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.plan.memory.estimate import MemoryFit
from holdfast.plan.mixed import allocate_mixed_batch
from holdfast.plan.request.plan_request import PlannedRun, PlanRequest, estimate_model_memory
from holdfast.plan.request.setup import RECOMPUTE_LEVELS, build_setup
from holdfast.plan.setup import ActivationCheckpointing, TrainingSetup
from holdfast.training.heterogeneous.batch_allocation import BatchAllocation


def plan_mixed_cluster(
    request: PlanRequest,
) -> tuple[tuple[PlannedRun, ...], BatchAllocation | None]:
    """Plan one run per GPU kind with its largest micro-batch, and allocate the batch.

    The allocation is None if the model does not surely fit on every GPU.

    Raises:
        InvalidValue: no batch, a batch that cannot be met, ranks that share a sequence, or
            submodels.
    """
    if request.batch is None:
        raise InvalidValue(
            "a cluster of several kinds of GPU",
            why="--batch is missing",
            next_step="add the global batch size, e.g. --batch 64",
        )
    if not request.model.is_plain:
        raise InvalidValue(
            f"{request.model.name} on GPUs of several kinds",
            why="the speed of submodels and adapters on each GPU is unknown",
            next_step="measure them with holdfast.probe_speed",
        )
    if request.micro_batch or request.accumulation:
        raise InvalidValue(
            "--micro-batch and --accumulation",
            why="GPUs of several kinds get micro-batches by their speed",
            next_step="use --batch only",
        )
    world_size = request.gpus
    smallest = build_setup(request, world_size, 1, 1, request.recompute or RECOMPUTE_LEVELS[-1])
    runs = tuple(
        PlannedRun(
            setup=smallest,
            cluster=cluster,
            memory=estimate_model_memory(request.model, smallest, cluster),
            step=None,
        )
        for cluster in request.clusters
    )
    if any(run.memory.fit is not MemoryFit.FITS for run in runs):
        return runs, None
    setup, allocation = _best_allocation(request)
    sized_runs = []
    for cluster in request.clusters:
        share = next(run for run in allocation.shares if run.kind == cluster.gpu.name)
        rank_setup = msgspec.structs.replace(
            setup,
            data=world_size,
            micro_batch=max(share.micro_batches),
            accumulation=len(share.micro_batches),
        )
        sized_runs.append(
            PlannedRun(
                setup=rank_setup,
                cluster=cluster,
                memory=estimate_model_memory(request.model, rank_setup, cluster),
                step=None,
            )
        )
    return tuple(sized_runs), allocation


def _best_allocation(request: PlanRequest) -> tuple[TrainingSetup, BatchAllocation]:
    """Return the checkpointing level with the shortest step."""
    world_size, batch = request.gpus, request.batch or 0
    last_error: InvalidValue | None = None
    best: tuple[TrainingSetup, BatchAllocation] | None = None
    for recompute in (request.recompute,) if request.recompute is not None else RECOMPUTE_LEVELS:
        setup = build_setup(request, world_size, 1, 1, recompute or ActivationCheckpointing.NONE)
        try:
            allocation = allocate_mixed_batch(
                request.model.main_transformer, setup, request.clusters, batch, request.conditions
            )
        except InvalidValue as error:
            last_error = error
            continue
        if best is None or allocation.step_s < best[1].step_s:
            best = setup, allocation
    if best is None:
        raise last_error or InvalidValue("the batch", why="no GPU can process it")
    return best
