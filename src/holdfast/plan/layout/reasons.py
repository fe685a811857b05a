"""Explain why a layout is as fast as it is, what limits it, and why others are rejected."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.plan.advice.scaling import costs_per_token
from holdfast.plan.layout import space
from holdfast.plan.layout.search import LayoutCandidate, LayoutQuery, SearchState, axis_values
from holdfast.plan.memory.estimate import MemoryEstimate, MemoryFit
from holdfast.plan.setup import LossKernel, ShardingStrategy, TrainingSetup
from holdfast.plan.step_time.communication import bus_bandwidth, place_group
from holdfast.plan.step_time.traffic import TrafficKind, list_calls

#: Parts of a step below this share are not mentioned.
_MIN_SHARE = 0.02
#: Usual spelling.
STRATEGY_NAMES = {
    ShardingStrategy.DDP: "DDP",
    ShardingStrategy.ZERO1: "ZeRO-1",
    ShardingStrategy.ZERO2: "ZeRO-2",
    ShardingStrategy.ZERO3: "ZeRO-3",
    ShardingStrategy.FSDP1: "FSDP1",
    ShardingStrategy.FSDP2: "FSDP2",
}


class RejectedAlternative(msgspec.Struct, frozen=True, kw_only=True):
    """A value of an axis that the best layout does not have, and the reason.

    ``behind``: how much slower the fastest layout with it is, as a share of the best throughput;
    None if none fits or is possible. ``setup``: that fastest layout, or the smallest one.
    """

    axis: str
    value: str
    why: str
    behind: float | None = None
    setup: TrainingSetup | None = None

    def __str__(self) -> str:
        fastest = (
            f"; fastest such layout: {describe_setup(self.setup)}"
            if self.setup and self.behind is not None
            else ""
        )
        return f"{self.axis} {self.value}: {self.why}{fastest}"


def strategy_label(setup: TrainingSetup) -> str:
    """Return the usual spelling: HSDP for replicas of shards; "-" for a single data rank."""
    if setup.data * setup.context == 1:
        return "-"
    name = "HSDP" if setup.replicas > 1 else STRATEGY_NAMES[setup.strategy]
    no_reshard = setup.shards_parameters and not setup.reshard
    return f"{name}, no reshard" if no_reshard else name


def data_label(setup: TrainingSetup) -> str:
    """Return the data-parallel ranks; for HSDP, replicas times the ranks of each."""
    return (
        f"{setup.replicas} x {setup.data // setup.replicas}"
        if setup.replicas > 1
        else str(setup.data)
    )


def describe_setup(setup: TrainingSetup) -> str:
    """Describe briefly: "HSDP, data 4 x 32, tensor 8, pipeline 4, micro-batch 2 x 16"."""
    degrees = [(name, getattr(setup, name)) for name in ("tensor", "pipeline", "context", "expert")]
    single = setup.data * setup.context == 1
    parts = [] if single else [strategy_label(setup), f"data {data_label(setup)}"]
    parts += [f"{name} {degree}" for name, degree in degrees if degree > 1]
    return ", ".join([*parts, f"micro-batch {setup.micro_batch} x {setup.accumulation}"])


# ---- accepted layouts


def explain_layout(query: LayoutQuery, candidate: LayoutCandidate) -> tuple[str, ...]:
    """Return the time breakdown, the largest communication, and what memory rules out."""
    sentences = [_time_breakdown(candidate)]
    exposed = candidate.step.exposed
    if exposed:
        kind = max(exposed, key=lambda kind: exposed[kind])
        if exposed[kind] > _MIN_SHARE * candidate.step.seconds:
            sentences.append(f"{kind}: {_describe_group(query, candidate.setup, kind)}")
    sentences += _memory_limits(query, candidate)
    if candidate.setup.pipeline > 1 and (
        excess := space.stage_imbalance(
            query.model, candidate.setup.pipeline, candidate.setup.chunks
        )
    ):
        sentences.append(
            f"{query.model.layers} layers: the fullest stage has {excess:.1%} more than the average"
        )
    return tuple(sentences)


def _time_breakdown(candidate: LayoutCandidate) -> str:
    step = candidate.step
    parts = {
        "compute": step.compute,
        "pipeline bubble": step.bubble,
        "optimizer": step.optimizer,
        "waiting": step.waiting,
    }
    parts |= {part.value: value for part, value in step.exposed.items()}
    large = sorted(
        ((value, name) for name, value in parts.items() if value >= _MIN_SHARE * step.seconds),
        reverse=True,
    )
    return "time: " + ", ".join(f"{name} {value / step.seconds:.0%}" for value, name in large)


def _describe_group(query: LayoutQuery, setup: TrainingSetup, kind: TrafficKind) -> str:
    """Describe the ranks of this kind's largest call, and their bandwidth."""
    calls = [
        call
        for call in list_calls(query.model, setup, query.conditions.bucket)
        if call.kind is kind
    ]
    call = max(calls, key=lambda each: each.nbytes)
    group = place_group(query.cluster, call.ranks, call.stride)
    speed = bus_bandwidth(call.collective, group, query.conditions.links(query.cluster)) / 1e9
    location = f"across {group.nodes} nodes" if group.nodes > 1 else "in one node"
    return f"{call.ranks} ranks {location} at {speed:.3g} GB/s"


def _memory_limits(query: LayoutQuery, candidate: LayoutCandidate) -> Iterator[str]:
    """Yield alternatives that would be faster but do not fit."""
    setup, options = candidate.setup, query.memory_options
    level = options.index((setup.loss, setup.recompute))
    if level:
        milder = msgspec.structs.replace(
            setup, loss=options[level - 1][0], recompute=options[level - 1][1]
        )
        memory = query.estimate_memory(milder)
        current, milder_options = _memory_options(setup), _memory_options(milder)
        option = current[0] if current[0] != milder_options[0] else current[1]
        alternative = milder_options[0] if current[0] != milder_options[0] else milder_options[1]
        yield (f"{option}, as {alternative} {_shortage_verb(memory)} {memory.need}")
    per_rank = query.global_batch // setup.data
    larger = next(
        (
            split
            for split in space.micro_batch_splits(candidate.shape, setup.schedule, per_rank)
            if split[0] > setup.micro_batch
        ),
        None,
    )
    if larger is None:
        return
    wider = msgspec.structs.replace(setup, micro_batch=larger[0], accumulation=larger[1])
    memory = query.estimate_memory(wider)
    if memory.fit is not MemoryFit.FITS:
        yield (f"micro-batches of {larger[0]} {_shortage_verb(memory)} {memory.need}")


def _shortage_verb(memory: MemoryEstimate) -> str:
    return "would be tight at" if memory.fit is MemoryFit.TIGHT else "would need"


def _memory_options(setup: TrainingSetup) -> tuple[str, str]:
    """Return the loss kernel and the checkpointing level."""
    loss = "chunked loss" if setup.loss is LossKernel.CHUNKED else "unchunked loss"
    return loss, f"recompute {setup.recompute.value}"


# ---- rejected layouts


def explain_rejected(
    query: LayoutQuery, state: SearchState, best: LayoutCandidate | None
) -> tuple[RejectedAlternative, ...]:
    """Return each axis value that the best layout lacks, nearest to the best first per axis."""
    fastest: dict[tuple[str, object], LayoutCandidate] = {}
    for item in state.fastest.values():
        for axis in axis_values(item.shape, item.setup)[:-1]:
            if axis not in fastest or item.step.seconds < fastest[axis].step.seconds:
                fastest[axis] = item
    best_values = set(axis_values(best.shape, best.setup)) if best else set()
    slower = sorted(
        (item for item in fastest.items() if item[0] not in best_values),
        key=lambda item: item[1].step.seconds,
    )
    rejected = [_reject_slower(query, axis, best, item) for axis, item in slower if best]
    for axis, smallest in state.smallest.items():
        if axis not in fastest and axis[0] != "all":
            tight = smallest.memory.fit is MemoryFit.TIGHT
            verdict = (
                f"tight at best, within the estimate's ±{smallest.memory.error:.0%}"
                if tight
                else "does not fit"
            )
            why = f"{verdict}: {smallest.memory.need} at minimum"
            rejected.append(
                RejectedAlternative(
                    axis=axis[0], value=_format_value(axis[1]), why=why, setup=smallest.setup
                )
            )
    rejected += [
        RejectedAlternative(
            axis=axis,
            value=_format_value(value),
            why=f"{query.global_batch} sequences cannot be split equally among its ranks",
        )
        for axis, value in state.unmet_values
        if (axis, value) not in fastest and (axis, value) not in state.smallest
    ]
    rejected += [
        RejectedAlternative(axis=item.axis, value=str(item.value), why=item.why)
        for item in state.rejected_degrees
    ]
    order = ("strategy", "tensor", "pipeline", "context", "expert")
    return tuple(
        sorted(
            rejected,
            key=lambda item: (order.index(item.axis), item.behind is None, item.behind or 0.0),
        )
    )


def _format_value(value: object) -> str:
    return STRATEGY_NAMES[value] if isinstance(value, ShardingStrategy) else str(value)


def _reject_slower(
    query: LayoutQuery, axis: tuple[str, object], best: LayoutCandidate, other: LayoutCandidate
) -> RejectedAlternative:
    behind = 1 - other.step.tokens_per_s / best.step.tokens_per_s
    before, after = costs_per_token(best.step), costs_per_token(other.step)
    increase = {name: value - before.get(name, 0.0) for name, value in after.items()}
    largest = max(increase, key=lambda name: increase[name])
    prefix = ""
    if (
        axis[0] == "tensor"
        and other.shape.tensor > query.cluster.per_node
        and not query.options.allow_cross_node_tensor
    ):
        prefix = "crosses nodes, "
    why = (
        f"{prefix}{behind:.1%} slower: {largest} "
        f"({_explain_part(query, largest, best.setup, other.setup)})"
    )
    return RejectedAlternative(
        axis=axis[0], value=_format_value(axis[1]), why=why, behind=behind, setup=other.setup
    )


def _explain_part(query: LayoutQuery, part: str, best: TrainingSetup, other: TrainingSetup) -> str:
    if part in set(TrafficKind):
        return _describe_group(query, other, TrafficKind(part))
    if part == "pipeline bubble":
        return f"{other.pipeline} stages with {other.accumulation} micro-batches"
    if part == "compute" and other.recompute is not best.recompute:
        return f"needs recompute {other.recompute.value} to fit"
    if part == "compute":
        tokens = other.micro_batch * other.sequence // other.context
        return f"micro-batches of {tokens:,} tokens over {other.tensor} tensor-parallel ranks"
    return "each rank updates more weights" if part == "optimizer" else "ranks wait for the slowest"
