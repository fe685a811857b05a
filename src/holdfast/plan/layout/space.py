"""The layouts to search: degrees that the model, batch and cluster allow, and other choices.

Rules of the frameworks: tensor parallelism must divide the heads (Megatron-LM,
megatron/core/transformer/transformer_config.py). 1F1B needs a micro-batch for each stage,
interleaving a multiple of the stages (torch/distributed/pipelining/schedules.py;
megatron/core/pipeline_parallel/schedules.py). Balanced context parallelism cuts a sequence into
twice as many chunks as ranks (torch's ``_HeadTailLoadBalancer``). DeepSpeed's pipelines support at
most ZeRO-1 (deepspeed/runtime/pipe/engine.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.plan.hardware import Cluster
from holdfast.plan.models import Transformer
from holdfast.plan.setup import (
    ActivationCheckpointing,
    LossKernel,
    OffloadTarget,
    PipelineSchedule,
    ShardingStrategy,
    TrainingSetup,
)

#: Context parallelism leaves at least this many tokens per rank.
_MIN_CONTEXT_TOKENS = 2048
#: Model chunks per pipeline rank.
_CHUNK_COUNTS = (2, 4, 8)
#: Most sequences per micro-batch.
MAX_MICRO_BATCH = 64
_MAX_SHAPES = 1 << 14
#: Strategies that can offload parameters to the host.
_PARAMETER_SHARDING = (ShardingStrategy.FSDP2, ShardingStrategy.FSDP1, ShardingStrategy.ZERO3)


class LayoutOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to search, and how much to report.

    ``tensor``, ``pipeline``, ``context`` and ``expert``: a fixed degree; 0: search.
    ``allow_cross_node_tensor``: report tensor parallelism across nodes; it is evaluated in any
    case, to quantify its cost. ``tight``: accept layouts that fit only if the memory estimate is
    not too low. ``max_imbalance``: how many more layers than the average the fullest pipeline stage
    may have, as a share. ``time_error``: the time model does not distinguish closer times.
    ``simplest_within``: how much slower than the fastest layout the simplest may be, as a share.
    ``max_results``: layouts to report.
    """

    strategies: tuple[ShardingStrategy, ...] = (
        ShardingStrategy.FSDP2,
        ShardingStrategy.ZERO1,
        ShardingStrategy.ZERO2,
        ShardingStrategy.ZERO3,
        ShardingStrategy.DDP,
    )
    schedules: tuple[PipelineSchedule, ...] = (
        PipelineSchedule.ONE_F_ONE_B,
        PipelineSchedule.INTERLEAVED,
    )
    #: From the least time to the least memory.
    recompute_levels: tuple[ActivationCheckpointing, ...] = (
        ActivationCheckpointing.NONE,
        ActivationCheckpointing.SELECTIVE,
        ActivationCheckpointing.SECOND_LAYER,
        ActivationCheckpointing.OPERATIONS,
        ActivationCheckpointing.FULL,
    )
    tensor: int = 0
    pipeline: int = 0
    context: int = 0
    expert: int = 0
    allow_cross_node_tensor: bool = False
    tight: bool = False
    max_imbalance: float = 0.1
    time_error: float = 0.05
    simplest_within: float = 0.02
    max_results: int = 3

    def __post_init__(self) -> None:
        for name in ("strategies", "schedules", "recompute_levels"):
            if not getattr(self, name):
                raise InvalidValue(f"the option {name}", why="must not be empty")
        for name in ("tensor", "pipeline", "context", "expert"):
            if getattr(self, name) < 0:
                raise InvalidValue(
                    f"the degree {name}", why=f"{getattr(self, name)} is less than 0"
                )
        if self.max_results < 1:
            raise InvalidValue("the number of layouts", why=f"{self.max_results} is less than 1")


class LayoutShape(NamedTuple):
    """Degrees that multiply to the world size."""

    tensor: int
    pipeline: int
    context: int
    expert: int
    data: int


class RejectedDegree(NamedTuple):
    """An impossible degree, and the reason."""

    axis: str
    value: int
    why: str


def is_allowed(shape: LayoutShape, cluster: Cluster, options: LayoutOptions) -> bool:
    """Return whether the shape may be reported.

    Cross-node tensor parallelism is evaluated in any case.
    """
    return (
        options.allow_cross_node_tensor or bool(options.tensor) or shape.tensor <= cluster.per_node
    )


def list_divisors(number: int, most: int) -> list[int]:
    """Return the divisors of ``number`` up to ``most`` in increasing order."""
    return [each for each in range(1, min(number, most) + 1) if number % each == 0]


def enumerate_shapes(
    model: Transformer, cluster: Cluster, sequence: int, options: LayoutOptions
) -> tuple[list[LayoutShape], list[RejectedDegree]]:
    """Return all shapes that model and cluster allow, and the rejected degrees.

    Raises:
        InvalidValue: too many shapes.
    """
    rejected: list[RejectedDegree] = []
    tensors = _tensor_degrees(model, cluster, options, rejected)
    pipelines = _pipeline_degrees(model, cluster, options, rejected)
    contexts = _context_degrees(cluster, sequence, options, rejected)
    experts = _expert_degrees(model, cluster, options, rejected)
    count = len(tensors) * len(pipelines) * len(contexts) * len(experts)
    if count > _MAX_SHAPES:
        raise InvalidValue(
            f"{model.name} on {cluster}",
            why=f"it has {count:,} layouts",
            next_step="fix one or two degrees",
        )
    shapes = []
    for tensor in tensors:
        for pipeline in pipelines:
            if cluster.gpus % (tensor * pipeline):
                continue
            remaining = cluster.gpus // (tensor * pipeline)
            shapes += [
                LayoutShape(tensor, pipeline, context, expert, remaining // context)
                for context in contexts
                if remaining % context == 0
                for expert in experts
                if remaining % expert == 0
            ]
    return shapes, rejected


def _tensor_degrees(
    model: Transformer, cluster: Cluster, options: LayoutOptions, rejected: list[RejectedDegree]
) -> list[int]:
    """Return the divisors of a node, and two nodes for comparison."""
    degrees = []
    candidates = (
        [options.tensor] if options.tensor else list_divisors(cluster.per_node, cluster.per_node)
    )
    if cluster.nodes > 1 and cluster.per_node > 1 and not options.tensor:
        candidates.append(2 * cluster.per_node)
    for tensor in _degrees_dividing_gpus("tensor", candidates, cluster, rejected):
        undivided = [
            f"{count} {kind}"
            for count, kind in (
                (model.heads, "heads"),
                (model.kv_heads, "key-value heads"),
                (model.ffn, "feed-forward rows"),
            )
            if count % tensor
        ]
        if undivided:
            rejected.append(
                RejectedDegree("tensor", tensor, f"it does not divide {' or '.join(undivided)}")
            )
        else:
            degrees.append(tensor)
    return degrees


def _pipeline_degrees(
    model: Transformer, cluster: Cluster, options: LayoutOptions, rejected: list[RejectedDegree]
) -> list[int]:
    degrees = []
    candidates = (
        [options.pipeline] if options.pipeline else list_divisors(cluster.gpus, model.layers)
    )
    for pipeline in _degrees_dividing_gpus("pipeline", candidates, cluster, rejected):
        excess = stage_imbalance(model, pipeline, 1)
        if excess <= options.max_imbalance or (options.pipeline and pipeline <= model.layers):
            degrees.append(pipeline)
        else:
            why = f"{model.layers} layers: the fullest stage has {excess:.0%} more than the average"
            rejected.append(RejectedDegree("pipeline", pipeline, why))
    return degrees


def _context_degrees(
    cluster: Cluster, sequence: int, options: LayoutOptions, rejected: list[RejectedDegree]
) -> list[int]:
    candidates = (
        [options.context]
        if options.context
        else list_divisors(cluster.gpus, max(1, sequence // _MIN_CONTEXT_TOKENS))
    )
    degrees = []
    for context in _degrees_dividing_gpus("context", candidates, cluster, rejected):
        if context == 1 or sequence % (2 * context) == 0:
            degrees.append(context)
        else:
            rejected.append(
                RejectedDegree(
                    "context",
                    context,
                    f"{2 * context} chunks cannot split {sequence} tokens equally",
                )
            )
    return degrees


def _expert_degrees(
    model: Transformer, cluster: Cluster, options: LayoutOptions, rejected: list[RejectedDegree]
) -> list[int]:
    if options.expert and model.experts % options.expert:
        rejected.append(
            RejectedDegree("expert", options.expert, f"it does not divide {model.experts} experts")
        )
        return []
    return [options.expert] if options.expert else list_divisors(model.experts, cluster.gpus)


def _degrees_dividing_gpus(
    axis: str, candidates: Sequence[int], cluster: Cluster, rejected: list[RejectedDegree]
) -> list[int]:
    """Return the degrees that divide the GPUs; record the others as rejected."""
    degrees = [degree for degree in candidates if cluster.gpus % degree == 0]
    rejected += [
        RejectedDegree(axis, degree, f"it does not divide {cluster.gpus} GPUs")
        for degree in candidates
        if degree not in degrees
    ]
    return degrees


def stage_imbalance(model: Transformer, pipeline: int, chunks: int) -> float:
    """Return how many more layers than the average the fullest stage has, as a share."""
    return -(-model.layers // (pipeline * chunks)) * chunks * pipeline / model.layers - 1


# ---- choices within a shape


class ShardingChoice(NamedTuple):
    """What data-parallel ranks shard."""

    strategy: ShardingStrategy
    replicas: int
    reshard: bool


def sharding_choices(
    shape: LayoutShape, cluster: Cluster, options: LayoutOptions, base: TrainingSetup
) -> Iterator[ShardingChoice]:
    """Yield the strategies that a shape allows, the simplest first among equally fast ones."""
    shards = shape.data * shape.context
    strategies = [
        strategy
        for strategy in options.strategies
        if base.offload is not OffloadTarget.PARAMETERS or strategy in _PARAMETER_SHARDING
    ]
    if shards == 1:  # nothing to shard
        yield from (
            ShardingChoice(strategy, 1, reshard=strategy is ShardingStrategy.ZERO3)
            for strategy in strategies[:1]
        )
        return
    plain = shape.pipeline == 1 and shape.context == 1
    for strategy in strategies:
        if strategy in (ShardingStrategy.FSDP2, ShardingStrategy.FSDP1):
            for replicas in _replica_counts(shape, cluster):
                if (shards // replicas) % shape.expert == 0:
                    yield ShardingChoice(strategy, replicas, reshard=True)
                    yield ShardingChoice(strategy, replicas, reshard=False)
        elif strategy in (ShardingStrategy.DDP, ShardingStrategy.ZERO1) or (
            plain and shape.tensor == 1 and shape.expert == 1
        ):
            yield ShardingChoice(strategy, 1, reshard=True)


def _replica_counts(shape: LayoutShape, cluster: Cluster) -> list[int]:
    """Return replica counts: one over all ranks, one per node, per 4 nodes, per 16 nodes, …"""
    counts = [1]
    size = max(1, cluster.per_node // (shape.tensor * shape.context))
    while size < shape.data:
        if size > 1 and shape.data % size == 0:
            counts.append(shape.data // size)
        size *= 4
    return counts


def schedule_choices(
    model: Transformer, shape: LayoutShape, per_rank: int, options: LayoutOptions
) -> Iterator[tuple[PipelineSchedule, int]]:
    """Yield schedules and chunks per stage with which ``per_rank`` sequences fit the pipeline."""
    if shape.pipeline == 1:
        yield PipelineSchedule.ONE_F_ONE_B, 1
        return
    for schedule in options.schedules:
        if schedule is not PipelineSchedule.INTERLEAVED:
            yield schedule, 1
        elif per_rank % shape.pipeline == 0:
            for chunks in _CHUNK_COUNTS:
                enough_layers = shape.pipeline * chunks <= model.layers
                if (
                    enough_layers
                    and stage_imbalance(model, shape.pipeline, chunks) <= options.max_imbalance
                ):
                    yield schedule, chunks


def micro_batch_splits(
    shape: LayoutShape, schedule: PipelineSchedule, per_rank: int
) -> Iterator[tuple[int, int]]:
    """Yield micro-batch sizes and counts per step, smallest first; the product is ``per_rank``."""
    unit = shape.pipeline if schedule is PipelineSchedule.INTERLEAVED else 1
    for size in list_divisors(per_rank, MAX_MICRO_BATCH):
        count = per_rank // size
        if count >= shape.pipeline and count % unit == 0:
            yield size, count


def build_setup(
    base: TrainingSetup,
    shape: LayoutShape,
    sharding: ShardingChoice,
    schedule: tuple[PipelineSchedule, int],
    batches: tuple[int, int],
    memory_option: tuple[LossKernel, ActivationCheckpointing],
) -> TrainingSetup:
    """Return the combined setup; settings outside of the search are those of ``base``."""
    changed: dict[str, Any] = {
        "strategy": sharding.strategy,
        "replicas": sharding.replicas,
        "reshard": sharding.reshard,
        "data": shape.data,
        "tensor": shape.tensor,
        "pipeline": shape.pipeline,
        "context": shape.context,
        "expert": shape.expert,
        "schedule": schedule[0],
        "chunks": schedule[1],
        "micro_batch": batches[0],
        "accumulation": batches[1],
        "loss": memory_option[0],
        "recompute": memory_option[1],
    }
    return msgspec.structs.replace(base, **changed)
