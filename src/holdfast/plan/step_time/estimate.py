"""Estimate the step time of a model in a setup on a cluster, by part.

Matrix products run at the rate that GPUs reach for their size, attention at its kernel's,
everything else by the bytes that it moves. Then come communication, unless compute hides it, the
pipeline bubble, the slowest rank and the optimizer. Nothing is measured here: the rates are in
:mod:`holdfast.plan.step_time.rates`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log, sqrt

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.plan.hardware import Cluster
from holdfast.plan.models import Transformer
from holdfast.plan.setup import PipelineSchedule, TrainingSetup
from holdfast.plan.step_time.communication import collective_time, place_group
from holdfast.plan.step_time.rates import DEFAULT_CONDITIONS, Conditions
from holdfast.plan.step_time.traffic import (
    CollectiveCalls,
    TrafficKind,
    list_calls,
    max_stage_layers,
)
from holdfast.plan.step_time.work import (
    MicroBatchTime,
    matmul_dtype,
    micro_batch_time,
    optimizer_step_time,
)


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a step by part; the parts sum to the total.

    ``compute``: products, attention and memory-bound operations. ``exposed``: communication that
    compute does not hide, with its interference, by kind. ``bubble``: filling and draining the
    pipeline. ``waiting``: for the slowest rank and for data. ``hidden``: communication that compute
    hides, not part of the sum.
    """

    seconds: float
    compute: float
    exposed: dict[TrafficKind, float]
    bubble: float
    optimizer: float
    waiting: float
    hidden: dict[TrafficKind, float]
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    #: Utilization of the peak, by the model's operations and by all executed ones.
    mfu: float
    hfu: float

    @property
    def communication(self) -> float:
        """Return all exposed communication."""
        return sum(self.exposed.values())


def estimate_step_time(
    model: Transformer, setup: TrainingSetup, cluster: Cluster, conditions: Conditions | None = None
) -> StepTime:
    """Estimate the time of an optimizer step.

    Raises:
        InvalidValue: the setup needs another number of GPUs, or a dtype that they lack.
    """
    conditions = conditions or DEFAULT_CONDITIONS
    if setup.world_size != cluster.gpus:
        raise InvalidValue(
            f"the setup for {cluster}", why=f"it needs {setup.world_size} GPUs, not {cluster.gpus}"
        )
    work = micro_batch_time(model, setup, cluster.gpu, conditions)
    compute = (work.forward + work.backward + work.recompute) * setup.accumulation
    calls = list_calls(model, setup, conditions.bucket)
    exposed, hidden = communication_time(
        calls, max_stage_layers(model, setup), setup, cluster, conditions, work
    )
    serial = sum(
        exposed.get(kind, 0.0)
        for kind in (
            TrafficKind.TENSOR,
            TrafficKind.CONTEXT,
            TrafficKind.EXPERT,
            TrafficKind.PIPELINE,
        )
    )
    bubble = _bubble_micro_batches(setup) * (compute + serial) / setup.accumulation
    model_flops = model.flops_per_token(setup.sequence, causal=setup.flash) * setup.tokens_per_step
    spent = StepCosts(
        compute=compute,
        exposed=exposed,
        hidden=hidden,
        bubble=bubble,
        optimizer=optimizer_step_time(model, setup, cluster.gpu, conditions),
        model_flops=model_flops,
        executed_flops=model_flops * (1 + work.recompute_share / 3),
    )
    return total_step_time(spent, setup, cluster, conditions)


class StepCosts(msgspec.Struct, kw_only=True, gc=False):
    """Seconds of a step before ranks wait for each other, and its operations."""

    compute: float
    exposed: dict[TrafficKind, float]
    hidden: dict[TrafficKind, float]
    bubble: float
    optimizer: float
    model_flops: float
    executed_flops: float


def total_step_time(
    costs: StepCosts, setup: TrainingSetup, cluster: Cluster, conditions: Conditions
) -> StepTime:
    """Sum the parts of a step, including waiting for ranks and data."""
    optimizer = costs.optimizer + conditions.rates.step_s
    delay_share = max(0.0, conditions.slowest - 1.0) + conditions.jitter * sqrt(
        2 * log(setup.world_size)
    )
    waiting = delay_share * (costs.compute + optimizer) + conditions.loading_s
    total = costs.compute + sum(costs.exposed.values()) + costs.bubble + optimizer + waiting
    tokens_per_s = setup.tokens_per_step / total
    available_flops = (
        cluster.gpus * total * cluster.gpu.peak(matmul_dtype(setup, cluster.gpu, conditions))
    )
    return StepTime(
        seconds=total,
        compute=costs.compute,
        exposed=costs.exposed,
        bubble=costs.bubble,
        optimizer=optimizer,
        waiting=waiting,
        hidden=costs.hidden,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=tokens_per_s / cluster.gpus,
        mfu=costs.model_flops / available_flops,
        hfu=costs.executed_flops / available_flops,
    )


# ---- waiting


def _bubble_micro_batches(setup: TrainingSetup) -> float:
    """Return the bubble in micro-batch times.

    D. Narayanan et al. (2021) §2.2; P. Qi et al., "Zero Bubble" (2023).
    """
    stages_ahead = setup.pipeline - 1
    if setup.schedule is PipelineSchedule.INTERLEAVED:
        return stages_ahead / setup.chunks
    return (
        stages_ahead / 3 if setup.schedule is PipelineSchedule.ZERO_BUBBLE else float(stages_ahead)
    )


# ---- communication


def communication_time(
    calls: Sequence[CollectiveCalls],
    layers: int,
    setup: TrainingSetup,
    cluster: Cluster,
    conditions: Conditions,
    work: MicroBatchTime,
) -> tuple[dict[TrafficKind, float], dict[TrafficKind, float]]:
    """Return the seconds of a step by kind: exposed ones, and those that compute hides."""
    links = conditions.links(cluster)
    phases: tuple[list[tuple[TrafficKind, float]], ...] = ([], [], [])
    exposed: dict[TrafficKind, float] = {}
    hidden: dict[TrafficKind, float] = {}
    micro_batches = setup.accumulation
    for call in calls:
        call_s = collective_time(
            call.collective, call.nbytes, place_group(cluster, call.ranks, call.stride), links
        )
        if call_s == 0.0:
            continue
        if (
            call.kind is TrafficKind.GATHER and call.once
        ):  # after the optimizer step, before forward
            exposed[call.kind] = exposed.get(call.kind, 0.0) + call_s * call.once
        elif call.kind in _OVERLAPPED_KINDS:
            if call.forward:
                phases[0].append((call.kind, call_s * call.forward))
            if call.backward:
                phases[1].append((call.kind, call_s * call.backward))
            if call.once:
                phases[2].append((call.kind, call_s * call.once))
        else:
            exposed_share = (
                conditions.rates.overlapped_tensor
                if call.kind is TrafficKind.TENSOR and conditions.tensor_overlap
                else 1.0
            )
            exposed[call.kind] = (
                exposed.get(call.kind, 0.0)
                + exposed_share * call_s * (call.forward + call.backward) * micro_batches
            )
    backward_s = work.backward + work.recompute
    for phase, compute_s, repeats in zip(
        phases,
        (work.forward, backward_s, backward_s),
        (micro_batches, micro_batches, 1),
        strict=True,
    ):
        _add_overlapped(phase, compute_s, repeats, layers, conditions, exposed, hidden)
    return exposed, hidden


_OVERLAPPED_KINDS = (TrafficKind.GATHER, TrafficKind.REDUCE, TrafficKind.REPLICAS)


def _add_overlapped(
    phase: list[tuple[TrafficKind, float]],
    compute_s: float,
    repeats: int,
    layers: int,
    conditions: Conditions,
    exposed: dict[TrafficKind, float],
    hidden: dict[TrafficKind, float],
) -> None:
    """Add the exposed and the hidden part of a phase that overlaps compute.

    Exposed is what exceeds ``compute_s``, the first or last layer's share, and the interference.
    """
    if not phase:
        return
    total = sum([seconds for _, seconds in phase])
    overlapped = min(total * (1 - 1 / (layers + 1)), compute_s) if conditions.prefetch else 0.0
    remaining = total - overlapped + conditions.rates.interference * overlapped
    exposed_factor, hidden_factor = (
        remaining / total * repeats,
        (total - remaining) / total * repeats,
    )
    for kind, kind_s in phase:
        exposed[kind] = exposed.get(kind, 0.0) + kind_s * exposed_factor
        hidden[kind] = hidden.get(kind, 0.0) + kind_s * hidden_factor
