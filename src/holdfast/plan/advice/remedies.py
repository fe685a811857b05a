"""Changes that make a step faster, with their gain and cost by the time model.

Memory is not checked here: ``costs`` states where a change needs more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.plan.hardware import Cluster
from holdfast.plan.models import Transformer
from holdfast.plan.setup import PipelineSchedule, ShardingStrategy, TrainingSetup
from holdfast.plan.step_time.estimate import StepTime, estimate_step_time
from holdfast.plan.step_time.rates import DEFAULT_CONDITIONS, Conditions
from holdfast.plan.step_time.traffic import GATHERING_STRATEGIES

#: Least gain worth reporting.
_MIN_GAIN = 1.01
#: Factors for larger buckets and more accumulation.
_BUCKET_FACTOR, _ACCUMULATION_FACTOR = 8, 4


class SpeedRemedy(msgspec.Struct, frozen=True, kw_only=True):
    """A change of setup or conditions. ``gain``: throughput factor; ``costs``: what it requires."""

    name: str
    costs: str
    gain: float
    setup: TrainingSetup
    conditions: Conditions
    step: StepTime


def find_speed_remedies(
    model: Transformer, setup: TrainingSetup, cluster: Cluster, conditions: Conditions | None = None
) -> tuple[SpeedRemedy, ...]:
    """Return every change with a gain, the best first."""
    conditions = conditions or DEFAULT_CONDITIONS
    before = estimate_step_time(model, setup, cluster, conditions).tokens_per_s
    gains = []
    for name, costs, changed, changed_conditions in _candidate_changes(
        model, setup, cluster, conditions
    ):
        after = estimate_step_time(model, changed, cluster, changed_conditions)
        gain = after.tokens_per_s / before
        if gain >= _MIN_GAIN:
            gains.append(
                SpeedRemedy(
                    name=name,
                    costs=costs,
                    gain=gain,
                    setup=changed,
                    conditions=changed_conditions,
                    step=after,
                )
            )
    return tuple(sorted(gains, key=lambda remedy: -remedy.gain))


_Change = tuple[str, str, TrainingSetup, Conditions]


def _candidate_changes(
    model: Transformer, setup: TrainingSetup, cluster: Cluster, conditions: Conditions
) -> Iterator[_Change]:
    yield from _batch_changes(setup, conditions)
    yield from _volume_changes(setup, conditions)
    yield from _layout_changes(model, setup, cluster, conditions)
    yield from _overlap_changes(setup, conditions)


def _with(setup: TrainingSetup, **more: Any) -> TrainingSetup:
    return msgspec.structs.replace(setup, **more)


def _batch_changes(setup: TrainingSetup, conditions: Conditions) -> Iterator[_Change]:
    """Yield changes with more work between synchronizations."""
    longer = _with(setup, accumulation=setup.accumulation * _ACCUMULATION_FACTOR)
    yield (
        f"{_ACCUMULATION_FACTOR}x gradient accumulation",
        "a larger global batch",
        longer,
        conditions,
    )
    larger = _with(setup, micro_batch=setup.micro_batch * 2)
    yield (
        "double the micro-batch",
        "memory for activations, and a larger global batch",
        larger,
        conditions,
    )
    if setup.accumulation % 2 == 0:
        same = _with(setup, micro_batch=setup.micro_batch * 2, accumulation=setup.accumulation // 2)
        yield (
            "double the micro-batch, half the accumulation",
            "memory for activations",
            same,
            conditions,
        )


def _volume_changes(setup: TrainingSetup, conditions: Conditions) -> Iterator[_Change]:
    """Yield changes that communicate less."""
    if setup.precision.reduced > 2:
        bf16_precision = msgspec.structs.replace(setup.precision, reduced=2)
        yield (
            "reduce gradients in bf16",
            "precision of the reduction",
            _with(setup, precision=bf16_precision),
            conditions,
        )
    if setup.precision.reduced > 1:
        int8_precision = msgspec.structs.replace(setup.precision, reduced=1)
        compressed = _with(setup, precision=int8_precision)
        yield (
            "reduce gradients in 8 bits",
            "precision; needs error feedback",
            compressed,
            conditions,
        )
    if setup.strategy in GATHERING_STRATEGIES and setup.reshard and setup.pipeline == 1:
        yield (
            "keep gathered weights from forward to backward",
            "memory for all gathered weights",
            _with(setup, reshard=False),
            conditions,
        )


def _layout_changes(
    model: Transformer, setup: TrainingSetup, cluster: Cluster, conditions: Conditions
) -> Iterator[_Change]:
    """Yield changes of the parallel layout."""
    node_ranks = max(1, cluster.per_node // setup.tensor)
    if (
        setup.strategy in GATHERING_STRATEGIES
        and setup.shards > node_ranks
        and setup.context == 1
        and setup.data % node_ranks == 0
    ):
        hybrid = _with(setup, replicas=setup.data // node_ranks)
        memory = "memory for a node's share of the states"
        yield "shard within nodes, replicate across nodes (HSDP)", memory, hybrid, conditions
        if setup.precision.reduced > 2:
            bf16_precision = msgspec.structs.replace(setup.precision, reduced=2)
            yield (
                "HSDP with gradients reduced in bf16",
                memory,
                _with(hybrid, precision=bf16_precision),
                conditions,
            )
    if setup.strategy in GATHERING_STRATEGIES:
        zero1 = _with(setup, strategy=ShardingStrategy.ZERO1, replicas=1)
        yield (
            "shard only optimizer states (ZeRO-1)",
            "memory for all weights and gradients",
            zero1,
            conditions,
        )
    if setup.replicas == 1 and setup.expert == 1:
        for tensor in (2, 4, 8):
            factor = tensor // setup.tensor
            fits = (
                tensor <= cluster.per_node
                and model.kv_heads % tensor == 0
                and tensor % setup.tensor == 0
            )
            if factor > 1 and fits and setup.data % factor == 0:
                wider = _with(
                    setup,
                    tensor=tensor,
                    data=setup.data // factor,
                    micro_batch=setup.micro_batch * factor,
                )
                yield (
                    f"tensor parallelism over {tensor} GPUs of a node",
                    "no change of the global batch",
                    wider,
                    conditions,
                )


def _overlap_changes(setup: TrainingSetup, conditions: Conditions) -> Iterator[_Change]:
    """Yield changes that overlap more work."""
    if not conditions.prefetch:
        yield (
            "prefetch weights",
            "memory for one more layer",
            setup,
            msgspec.structs.replace(conditions, prefetch=True),
        )
    if setup.tensor > 1 and not conditions.tensor_overlap:
        overlapped = msgspec.structs.replace(conditions, tensor_overlap=True)
        yield (
            "overlap tensor-parallel communication with matrix products",
            "asynchronous tensor parallelism",
            setup,
            overlapped,
        )
    if setup.strategy not in GATHERING_STRATEGIES:
        bigger = msgspec.structs.replace(conditions, bucket=conditions.bucket * _BUCKET_FACTOR)
        yield f"{_BUCKET_FACTOR}x larger buckets", "memory for buckets", setup, bigger
    if setup.pipeline > 1:
        if setup.schedule is not PipelineSchedule.ZERO_BUBBLE:
            filled = _with(setup, schedule=PipelineSchedule.ZERO_BUBBLE)
            yield (
                "zero-bubble pipeline schedule",
                "memory, as weight gradients are delayed",
                filled,
                conditions,
            )
        chunks = setup.chunks * 2
        yield (
            f"interleaved schedule with {chunks} chunks per stage",
            "more communication between stages",
            _with(setup, schedule=PipelineSchedule.INTERLEAVED, chunks=chunks),
            conditions,
        )
    if conditions.slowest > 1:
        yield (
            "replace the slowest rank",
            "one GPU",
            setup,
            msgspec.structs.replace(conditions, slowest=1.0),
        )
    if conditions.loading_s:
        yield (
            "prefetch data",
            "host processes and memory",
            setup,
            msgspec.structs.replace(conditions, loading_s=0.0),
        )
