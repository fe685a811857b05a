"""How throughput scales with GPUs, why it falls behind, and what would help.

Efficiency is throughput per GPU relative to the best point of the curve, so at most 1. A *bend* is
a size with less efficiency than the one before. Its reason is the part of a step that grew most, in
GPU-seconds per token: a group spans several nodes for the first time, calls became so small that
latency dominates, or there is too little compute per GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import gcd

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.plan.advice.remedies import SpeedRemedy, find_speed_remedies
from holdfast.plan.hardware import Cluster
from holdfast.plan.models import Transformer
from holdfast.plan.setup import TrainingSetup
from holdfast.plan.step_time.communication import (
    PlacedGroup,
    bus_bandwidth,
    collective_latency,
    collective_time,
    place_group,
)
from holdfast.plan.step_time.estimate import StepTime, estimate_step_time
from holdfast.plan.step_time.rates import DEFAULT_CONDITIONS, Conditions
from holdfast.plan.step_time.traffic import CollectiveCalls, TrafficKind, list_calls

#: Loss of efficiency from one size to the next that counts as a bend.
_BEND_THRESHOLD = 0.02
_LATENCY_BOUND_SHARE = 0.5


class ScalingMode(StrEnum):
    """What stays constant as the number of GPUs grows."""

    WEAK = "batch per GPU"
    STRONG = "global batch"


class ScalingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A size of the curve; ``reason``: why efficiency dropped, "" if it did not."""

    gpus: int
    setup: TrainingSetup
    step: StepTime
    efficiency: float
    reason: str = ""


class ScalingSweep(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in increasing order, why some are impossible, and remedies at the largest one."""

    growth: ScalingMode
    points: tuple[ScalingPoint, ...]
    remedies: tuple[SpeedRemedy, ...]
    ends: str = ""


def gpu_counts(setup: TrainingSetup, most: int) -> tuple[int, ...]:
    """Return GPU counts: the model's minimum, doubled repeatedly, and ``most``."""
    least = setup.tensor * setup.pipeline * setup.context
    counts = []
    while least < most:
        counts.append(least)
        least *= 2
    return (*counts, most)


def resize_setup(
    setup: TrainingSetup, gpus: int, mode: ScalingMode = ScalingMode.WEAK
) -> TrainingSetup:
    """Return the same model parallelism on another number of GPUs; shard groups keep their size.

    Raises:
        InvalidValue: the degrees do not divide the GPUs, or the global batch is too small for them.
    """
    model_ranks = setup.tensor * setup.pipeline * setup.context
    if gpus < 1 or gpus % model_ranks:
        raise InvalidValue(
            f"{gpus} GPUs",
            why=f"tensor x pipeline x context parallelism needs a multiple of {model_ranks}",
        )
    data = gpus // model_ranks
    shards = setup.data // setup.replicas
    replicas = data // shards if setup.replicas > 1 and data % shards == 0 else 1
    micro, accumulation = setup.micro_batch, setup.accumulation
    if mode is ScalingMode.STRONG:
        if setup.global_batch % data:
            raise InvalidValue(
                f"{gpus} GPUs",
                why=f"{setup.global_batch} sequences cannot be split equally among {data} ranks",
            )
        per_rank = setup.global_batch // data
        micro = max(size for size in range(1, min(micro, per_rank) + 1) if per_rank % size == 0)
        accumulation = per_rank // micro
    return msgspec.structs.replace(
        setup,
        data=data,
        replicas=replicas,
        expert=gcd(setup.expert, data * setup.context),
        micro_batch=micro,
        accumulation=accumulation,
    )


def sweep_gpu_counts(
    model: Transformer,
    setup: TrainingSetup,
    cluster: Cluster,
    gpus: Sequence[int],
    mode: ScalingMode = ScalingMode.WEAK,
    conditions: Conditions | None = None,
) -> ScalingSweep:
    """Evaluate throughput at each size in increasing order; nodes are as in ``cluster``.

    Raises:
        InvalidValue: the first size is impossible.
    """
    steps: list[tuple[Cluster, TrainingSetup, StepTime]] = []
    ends = ""
    for size in sorted(set(gpus)):
        try:
            resized, resized_cluster = resize_setup(setup, size, mode), cluster.resized(size)
        except InvalidValue as error:
            if not steps:
                raise
            ends = str(error)
            break
        steps.append(
            (
                resized_cluster,
                resized,
                estimate_step_time(model, resized, resized_cluster, conditions),
            )
        )
    best = max(step.tokens_per_s_per_gpu for *_, step in steps)
    points: list[ScalingPoint] = []
    for number, (resized_cluster, resized, step) in enumerate(steps):
        efficiency = step.tokens_per_s_per_gpu / best
        reason = ""
        if points and points[-1].efficiency - efficiency >= _BEND_THRESHOLD:
            reason = explain_slowdown(
                model, steps[number - 1], (resized_cluster, resized, step), conditions
            )
        points.append(
            ScalingPoint(
                gpus=resized_cluster.gpus,
                setup=resized,
                step=step,
                efficiency=efficiency,
                reason=reason,
            )
        )
    resized_cluster, resized, _ = steps[-1]
    return ScalingSweep(
        growth=mode,
        points=tuple(points),
        remedies=find_speed_remedies(model, resized, resized_cluster, conditions),
        ends=ends,
    )


# ---- explanations


def costs_per_token(step: StepTime) -> dict[str, float]:
    """Return GPU-seconds per token by part of the step."""
    parts = {
        "compute": step.compute,
        "pipeline bubble": step.bubble,
        "optimizer": step.optimizer,
        "waiting for the slowest rank or data": step.waiting,
    }
    parts |= {part.value: value for part, value in step.exposed.items()}
    return {name: value / step.seconds / step.tokens_per_s_per_gpu for name, value in parts.items()}


def explain_slowdown(
    model: Transformer,
    before: tuple[Cluster, TrainingSetup, StepTime],
    after: tuple[Cluster, TrainingSetup, StepTime],
    conditions: Conditions | None = None,
) -> str:
    """Explain in a sentence why a token costs more GPU-seconds than before."""
    old, new = costs_per_token(before[2]), costs_per_token(after[2])
    increase = {name: value - old.get(name, 0.0) for name, value in new.items()}
    largest = max(increase, key=lambda name: increase[name])
    total_increase = sum(value for value in increase.values() if value > 0)
    share = increase[largest] / total_increase if total_increase else 0.0
    part_text = f"{largest} ({share:.0%} of the loss)"
    return (
        f"{part_text}: "
        f"{_explain_part(model, largest, before, after, conditions or DEFAULT_CONDITIONS)}"
    )


def _explain_part(
    model: Transformer,
    part: str,
    before: tuple[Cluster, TrainingSetup, StepTime],
    after: tuple[Cluster, TrainingSetup, StepTime],
    conditions: Conditions,
) -> str:
    cluster, setup, _ = after
    tokens = setup.micro_batch * setup.sequence // setup.context
    if part == "pipeline bubble":
        previous = before[1].accumulation
        return (
            f"{setup.pipeline} stages with {setup.accumulation} micro-batches, previously "
            f"{previous}"
        )
    if part == "compute":
        tokens = setup.micro_batch * setup.sequence // setup.context
        return f"a micro-batch of {tokens:,} tokens is too small to saturate the GPU"
    if part == "optimizer":
        return "fewer tokens per optimizer step"
    if part not in set(TrafficKind):
        return f"the slowest of {cluster.gpus} ranks is slower than of {before[0].gpus}"
    return _explain_communication(model, TrafficKind(part), before, after, conditions)


def _explain_communication(
    model: Transformer,
    kind: TrafficKind,
    before: tuple[Cluster, TrainingSetup, StepTime],
    after: tuple[Cluster, TrainingSetup, StepTime],
    conditions: Conditions,
) -> str:
    """Explain exposed communication: latency, inter-node links, or too little compute."""
    cluster, setup, _ = after
    current = _largest_call(model, kind, setup, cluster, conditions)
    if current is None:
        return "previously overlapped"
    call, group = current
    previous = _largest_call(model, kind, before[1], before[0], conditions)
    links = conditions.links(cluster)
    duration = collective_time(call.collective, call.nbytes, group, links)
    if collective_latency(call.collective, group, links) > _LATENCY_BOUND_SHARE * duration:
        size = f"{call.nbytes / 2**20:.3g} MiB"
        return (
            f"calls of {size} over {group.ranks} ranks are latency-bound "
            f"({duration * 1e6:,.0f} us each)"
        )
    speed = f"{bus_bandwidth(call.collective, group, links) / 1e9:.3g} GB/s"
    if group.nodes > 1 and (previous is None or previous[1].nodes == 1):
        return f"its {group.ranks} ranks now span {group.nodes} nodes at {speed}"
    tokens, previous_tokens = (
        each.tokens_per_step // each.world_size for each in (setup, before[1])
    )
    location = f"{group.nodes} nodes" if group.nodes > 1 else "one node"
    if tokens < previous_tokens:
        return (
            f"{tokens:,} tokens per step and GPU (previously {previous_tokens:,}) are too "
            f"few to overlap it at {speed} over {location}"
        )
    return f"{group.ranks} ranks in {location} at {speed}, not overlapped with compute"


def _largest_call(
    model: Transformer,
    kind: TrafficKind,
    setup: TrainingSetup,
    cluster: Cluster,
    conditions: Conditions,
) -> tuple[CollectiveCalls, PlacedGroup] | None:
    """Return the largest call of a kind and its group; None if there is none."""
    calls = [
        call
        for call in list_calls(model, setup, conditions.bucket)
        if call.kind is kind and call.ranks > 1
    ]
    call = max(calls, key=lambda call: call.nbytes, default=None)
    return None if call is None else (call, place_group(cluster, call.ranks, call.stride))
