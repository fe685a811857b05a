"""Collective calls of a rank in a step, for a model in a setup.

Volumes follow S. Rajbhandari et al., "ZeRO" (2019), §7 (ZeRO-1 and 2 move as much as DDP, ZeRO-3 50
% more), V. Korthikanti et al., "Reducing Activation Recomputation" (2022), §4 (tensor parallelism:
an all-reduce, or a reduce-scatter and an all-gather of the same bytes, after attention and after
the feed-forward part), and H. Liu et al., "Ring Attention" (2023). With gradient accumulation FSDP,
ZeRO-2 and ZeRO-3 communicate at every micro-batch; DDP under ``no_sync`` and ZeRO-1 only at the
last one.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

import msgspec

from holdfast.plan.models import Transformer
from holdfast.plan.setup import ActivationCheckpointing, ShardingStrategy, TrainingSetup
from holdfast.plan.step_time.communication import CollectiveKind

#: Strategies that shard the weights and gather them when needed.
GATHERING_STRATEGIES = (ShardingStrategy.FSDP1, ShardingStrategy.FSDP2, ShardingStrategy.ZERO3)
#: Share of forward's calls that recomputation repeats. With selective operations, attention and
#: results of reductions are saved; of tensor-parallel calls, gathers are repeated (torchtitan,
#: distributed/activation_checkpoint.py).
_RECOMPUTED_SHARE = {ActivationCheckpointing.FULL: 1.0, ActivationCheckpointing.SECOND_LAYER: 0.5}
_RECOMPUTED_TENSOR_SHARE = {**_RECOMPUTED_SHARE, ActivationCheckpointing.OPERATIONS: 0.5}
#: Activations are sent in 16 bits.
_ACTIVATION_BYTES = 2


class TrafficKind(StrEnum):
    """The purpose of a collective."""

    GATHER = "gathering weights"
    REDUCE = "reducing gradients"
    REPLICAS = "reducing gradients over replicas"
    TENSOR = "tensor parallel"
    CONTEXT = "keys and values of other context ranks"
    EXPERT = "tokens to experts and back"
    PIPELINE = "pipeline"


class CollectiveCalls(msgspec.Struct, frozen=True, gc=False):
    """Equal calls of ``nbytes`` each, over ``ranks`` that are ``stride`` apart.

    ``forward`` and ``backward``: calls per micro-batch; ``once``: calls at the end of a step.
    """

    kind: TrafficKind
    collective: CollectiveKind
    nbytes: float
    ranks: int
    stride: int
    forward: float = 0.0
    backward: float = 0.0
    once: float = 0.0


def max_stage_layers(model: Transformer, setup: TrainingSetup) -> int:
    """Return the layers of the fullest pipeline stage."""
    return -(-model.layers // setup.pipeline)


class LayerCounts(msgspec.Struct, frozen=True):
    """Parameters: of a layer, of all its experts, and of a layer per token (active)."""

    layer: int
    experts: int
    active: int
    embedding: int
    head: int


@lru_cache(maxsize=64)
def layer_counts(model: Transformer) -> LayerCounts:
    """Return the counts of a model; cached, as a search needs them tens of thousands of times."""
    experts = model.experts * model.expert_params if model.experts > 1 else 0
    inactive = experts // model.experts * (model.experts - model.active)
    active = model.attention_params + model.feed_forward_params - inactive
    return LayerCounts(
        model.layer_params, experts, active, model.embedding_params, model.head_params
    )


def params_per_rank(model: Transformer, setup: TrainingSetup) -> tuple[float, float]:
    """Return the parameters per tensor-parallel rank: of a layer, and of embedding and head.

    Embedding and head are those of a stage that has them. Experts are divided by ``expert``, too.
    """
    counts = layer_counts(model)
    layer = counts.layer - counts.experts * (1 - 1 / setup.expert)
    ends = (
        counts.embedding + counts.head
        if setup.pipeline == 1
        else max(counts.embedding, counts.head)
    )
    return layer / setup.tensor, ends / setup.tensor


def list_calls(
    model: Transformer, setup: TrainingSetup, bucket: float = 25 * 2**20
) -> list[CollectiveCalls]:
    """Return all collective calls of a rank on the fullest stage.

    ``bucket``: bytes that DDP and ZeRO-1 and 2 reduce at once.
    """
    calls = _data_parallel_calls(model, setup, bucket)
    layers = max_stage_layers(model, setup)
    tokens = setup.micro_batch * setup.sequence // setup.context
    activation = float(tokens * model.hidden * _ACTIVATION_BYTES)
    recomputed = _RECOMPUTED_SHARE.get(setup.recompute, 0.0)
    if setup.tensor > 1:
        repeated = _RECOMPUTED_TENSOR_SHARE.get(setup.recompute, 0.0)
        calls.append(
            CollectiveCalls(
                TrafficKind.TENSOR,
                CollectiveKind.ALL_REDUCE,
                activation,
                setup.tensor,
                1,
                forward=2.0 * layers,
                backward=(2 + 2 * repeated) * layers,
            )
        )
    if setup.context > 1:
        key_bytes = (
            2.0 * tokens * model.kv_heads * model.head_width * _ACTIVATION_BYTES / setup.tensor
        )
        steps = float(setup.context - 1) * layers
        calls.append(
            CollectiveCalls(
                TrafficKind.CONTEXT,
                CollectiveKind.SEND,
                key_bytes,
                setup.context,
                setup.tensor,
                forward=steps,
                backward=(2 + recomputed) * steps,
            )
        )
    if setup.expert > 1:
        routed_bytes = activation * model.active / setup.tensor
        calls.append(
            CollectiveCalls(
                TrafficKind.EXPERT,
                CollectiveKind.ALL_TO_ALL,
                routed_bytes,
                setup.expert,
                setup.tensor,
                forward=2.0 * layers,
                backward=(2 + 2 * recomputed) * layers,
            )
        )
    if setup.pipeline > 1:
        sequence_split = setup.tensor if setup.sequence_parallel else 1
        calls.append(
            CollectiveCalls(
                TrafficKind.PIPELINE,
                CollectiveKind.SEND,
                activation / sequence_split,
                setup.pipeline,
                setup.world_size // setup.pipeline,
                forward=float(setup.chunks),
                backward=float(setup.chunks),
            )
        )
    return calls


def _data_parallel_calls(
    model: Transformer, setup: TrainingSetup, bucket: float
) -> list[CollectiveCalls]:
    """Return the calls for weights and gradients."""
    layers = max_stage_layers(model, setup)
    layer, ends = params_per_rank(model, setup)
    precision, stride = setup.precision, setup.tensor
    calls: list[CollectiveCalls] = []
    if setup.strategy in GATHERING_STRATEGIES:
        for params, count in ((layer, layers), (ends, 1)):
            calls += _sharded_unit_calls(setup, params, float(count))
        return calls
    ranks, total = setup.data * setup.context, layer * layers + ends
    reduced = total * precision.reduced
    bucket_size = min(bucket, reduced)
    if setup.strategy is ShardingStrategy.DDP:
        return [
            CollectiveCalls(
                TrafficKind.REDUCE,
                CollectiveKind.ALL_REDUCE,
                bucket_size,
                ranks,
                stride,
                once=reduced / bucket_size,
            )
        ]
    reduces_each_micro_batch = setup.strategy is ShardingStrategy.ZERO2
    weights = total * precision.compute
    return [
        CollectiveCalls(
            TrafficKind.REDUCE,
            CollectiveKind.REDUCE_SCATTER,
            bucket_size,
            ranks,
            stride,
            backward=reduced / bucket_size if reduces_each_micro_batch else 0.0,
            once=0.0 if reduces_each_micro_batch else reduced / bucket_size,
        ),
        CollectiveCalls(
            TrafficKind.GATHER,
            CollectiveKind.ALL_GATHER,
            min(bucket, weights),
            ranks,
            stride,
            once=weights / min(bucket, weights),
        ),
    ]


def _sharded_unit_calls(setup: TrainingSetup, params: float, count: float) -> list[CollectiveCalls]:
    """Return the calls for ``count`` units of parameters that are gathered when needed.

    A pipeline reduces once, after its last micro-batch, and gathers once if weights stay after
    forward (torch.distributed.pipelining.stage, for FSDP).
    """
    stride, ranks, precision = setup.tensor, setup.shards, setup.precision
    has_pipeline = setup.pipeline > 1
    per_micro_batch, per_step = (0.0, count) if has_pipeline else (count, 0.0)
    keeps_weights = has_pipeline and not setup.reshard
    calls = [
        CollectiveCalls(
            TrafficKind.GATHER,
            CollectiveKind.ALL_GATHER,
            params * precision.compute,
            ranks,
            stride,
            forward=0.0 if keeps_weights else count,
            backward=count if setup.reshard else 0.0,
            once=count if keeps_weights else 0.0,
        ),
        CollectiveCalls(
            TrafficKind.REDUCE,
            CollectiveKind.REDUCE_SCATTER,
            params * precision.reduced,
            ranks,
            stride,
            backward=per_micro_batch,
            once=per_step,
        ),
    ]
    if setup.replicas > 1:
        shard_bytes = params * precision.reduced / ranks
        calls.append(
            CollectiveCalls(
                TrafficKind.REPLICAS,
                CollectiveKind.ALL_REDUCE,
                shard_bytes,
                setup.replicas,
                stride * ranks,
                backward=per_micro_batch,
                once=per_step,
            )
        )
    return calls
