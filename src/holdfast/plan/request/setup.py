"""The setup of a plan: given degrees, and for the rest the fastest setup that fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.core.errors import InvalidValue
from holdfast.plan.memory.estimate import MemoryFit
from holdfast.plan.request.plan_request import PlannedRun, PlanRequest, evaluate_setup
from holdfast.plan.setup import (
    ActivationCheckpointing,
    PipelineSchedule,
    ShardingStrategy,
    TrainingSetup,
)

#: Checkpointing levels to try if none is given, from the least to the most.
RECOMPUTE_LEVELS = (
    ActivationCheckpointing.NONE,
    ActivationCheckpointing.OPERATIONS,
    ActivationCheckpointing.FULL,
)
#: Largest micro-batch to try if none is given.
_MAX_MICRO_BATCH = 64
#: Micro-batches per pipeline stage if no batch is given; the bubble is then a fifth of the step.
_MICRO_BATCHES_PER_STAGE = 4


def choose_run(request: PlanRequest) -> PlannedRun:
    """Return the fastest run that fits, else the fastest that may fit, else the smallest.

    Raises:
        InvalidValue: the degrees do not multiply to the GPUs, or the batch cannot be met exactly.
    """
    runs = [evaluate_setup(request, setup) for setup in candidate_setups(request)]
    for answer in (MemoryFit.FITS, MemoryFit.TIGHT):
        if matching := [run for run in runs if run.memory.fit is answer]:
            return max(matching, key=lambda run: run.step.tokens_per_s if run.step else 0.0)
    # Of equal runs, take the last: it recomputes most, so the fewest further changes are needed.
    return min(reversed(runs), key=lambda run: run.memory.worst.total)


def candidate_setups(request: PlanRequest) -> Iterator[TrainingSetup]:
    """Yield setups with the given options, varying micro-batch and checkpointing if not given."""
    check_degrees(request)
    data = count_data_ranks(request)
    for micro_batch, accumulation in batch_splits(request, data):
        for recompute in (
            (request.recompute,) if request.recompute is not None else RECOMPUTE_LEVELS
        ):
            yield build_setup(request, data, micro_batch, accumulation, recompute)


def check_degrees(request: PlanRequest) -> None:
    """Check that the model can be divided: heads, experts, and chunks of pipeline stages.

    Raises:
        InvalidValue: the model cannot be divided.
    """
    model, degrees = request.model.main_transformer, request.degrees
    tensor, expert = degrees.get("tensor", 1), degrees.get("expert", 1)
    for count, kind in ((model.heads, "heads"), (model.kv_heads, "key-value heads")):
        if count % tensor:
            valid = [
                degree
                for degree in range(1, min(count, tensor) + 1)
                if count % degree == 0 and request.gpus % degree == 0
            ]
            raise InvalidValue(
                f"--tensor {tensor}",
                why=f"it does not divide the {count} {kind} of {model.name}",
                next_step=f"use {' or '.join(map(str, valid[-2:]))}",
            )
    if expert > 1 and (model.experts == 1 or model.experts % expert):
        why = (
            f"{model.name} has {model.experts} experts"
            if model.experts > 1
            else f"{model.name} has no experts"
        )
        raise InvalidValue(
            f"--expert {expert}",
            why=why,
            next_step="use a degree that divides the experts, or drop the option",
        )
    if degrees.get("chunks", 1) > 1 and degrees.get("pipeline", 1) == 1:
        raise InvalidValue(
            "--chunks", why="chunks need pipeline stages", next_step="add --pipeline"
        )


def build_setup(
    request: PlanRequest,
    data: int,
    micro_batch: int,
    accumulation: int,
    recompute: ActivationCheckpointing,
) -> TrainingSetup:
    """Return the setup of the request with this batch split and checkpointing level."""
    chunks = request.degrees.get("chunks", 1)
    default_schedule = PipelineSchedule.INTERLEAVED if chunks > 1 else PipelineSchedule.ONE_F_ONE_B
    degrees: dict[str, Any] = dict(request.degrees)
    setup = TrainingSetup(
        strategy=request.strategy or ShardingStrategy.FSDP2,
        data=data,
        micro_batch=micro_batch,
        accumulation=accumulation,
        sequence=request.sequence,
        recompute=recompute,
        flash=request.flash,
        compiled=request.compiled,
        precision=request.number_formats,
        fused_norms=request.fused_norms,
        optimizer=request.optimizer,
        offload=request.offload,
        loss=request.loss,
        schedule=request.schedule or default_schedule,
        fused_optimizer=request.fused_optimizer,
        bucket_views=request.bucket_views,
        reshard=request.reshard,
        **degrees,
    )
    return request.model.summary.apply_to(setup) if request.model.summary is not None else setup


def count_data_ranks(request: PlanRequest) -> int:
    """Return the number of data-parallel ranks.

    Raises:
        InvalidValue: the other degrees do not divide the GPUs.
    """
    shared = (
        request.degrees.get("tensor", 1)
        * request.degrees.get("pipeline", 1)
        * request.degrees.get("context", 1)
    )
    gpus = request.gpus
    if shared < 1 or gpus % shared:
        near = max(1, gpus // shared) * shared if shared > 0 else gpus
        raise InvalidValue(
            f"{gpus} GPUs",
            why=f"tensor x pipeline x context is {shared}, which does not divide them",
            next_step=f"use {near} or {near + shared} GPUs, or other degrees",
        )
    return gpus // shared


def batch_splits(request: PlanRequest, data: int) -> list[tuple[int, int]]:
    """Return pairs of micro-batch and accumulation that give the requested batch.

    Raises:
        InvalidValue: there are none.
    """
    stages = request.degrees.get("pipeline", 1)
    if request.batch is None:
        accumulation = request.accumulation or (
            _MICRO_BATCHES_PER_STAGE * stages if stages > 1 else 1
        )
        return [(request.micro_batch or 1, accumulation)]
    if request.micro_batch and request.accumulation:
        if (product := data * request.micro_batch * request.accumulation) != request.batch:
            factors = f"{data} data-parallel ranks x {request.micro_batch} x {request.accumulation}"
            raise InvalidValue(
                f"--batch {request.batch}",
                why=f"{factors} is {product}",
                next_step="omit one of the three",
            )
        return [(request.micro_batch, request.accumulation)]
    unit = data * (request.micro_batch or request.accumulation or 1)
    if request.batch % unit:
        raise InvalidValue(
            f"--batch {request.batch}",
            why=f"{data} ranks with equal shares give multiples of {unit}",
            next_step=_closest_batches(request.batch, unit),
        )
    per_rank = request.batch // data
    if request.micro_batch:
        return [(request.micro_batch, per_rank // request.micro_batch)]
    if request.accumulation:
        return [(per_rank // request.accumulation, request.accumulation)]
    return [
        (micro_batch, per_rank // micro_batch)
        for micro_batch in range(1, min(per_rank, _MAX_MICRO_BATCH) + 1)
        if per_rank % micro_batch == 0
    ]


def _closest_batches(batch: int, unit: int) -> str:
    below = batch // unit * unit
    candidates = f"{below} or {below + unit}" if below else str(unit)
    return (
        f"use {candidates}; for exactly {batch}, use unequal shares (holdfast.HeterogeneousSampler)"
    )
