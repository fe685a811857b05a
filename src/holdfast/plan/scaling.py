"""How throughput grows with the number of GPUs, why it falls behind, and what would help.

Efficiency is throughput per GPU beside the best of the curve, so that it is at most 1. A *bend* is a size at which it
is less than at the one before; its reason is the part of a step that grew most, in GPU-seconds a token, and how:
because a group reaches beyond its node for the first time, because calls have become so small that latency is most of
them, or because there is too little to compute for each GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import gcd

import msgspec

from holdfast.errors import BadValue
from holdfast.plan.communication import Group, bus, latency, placed, seconds
from holdfast.plan.hardware import Cluster
from holdfast.plan.models import Transformer
from holdfast.plan.rates import USUAL, Conditions
from holdfast.plan.remedies import Remedy, remedies
from holdfast.plan.setup import Setup
from holdfast.plan.time import Step, step
from holdfast.plan.traffic import Call, Part, traffic

#: So much of efficiency lost from one size to the next is a bend.
_BEND = 0.02
_LATENCY = 0.5


class Growth(StrEnum):
    """What stays as the number of GPUs grows: the batch of each of them, or that of all."""

    WEAK = "batch per GPU"
    STRONG = "global batch"


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A size of the curve; ``reason``: why efficiency is less than at the size before, "" where it is not."""

    gpus: int
    setup: Setup
    step: Step
    efficiency: float
    reason: str = ""


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes that rise, why not all could be had, and what would help at the largest one."""

    growth: Growth
    points: tuple[Point, ...]
    remedies: tuple[Remedy, ...]
    ends: str = ""


def sizes(setup: Setup, most: int) -> tuple[int, ...]:
    """Numbers of GPUs: a model's least (its tensor, pipeline and context ranks), twice that and so on, and ``most``."""
    least = setup.tensor * setup.pipeline * setup.context
    found = []
    while least < most:
        found.append(least)
        least *= 2
    return (*found, most)


def resized(setup: Setup, gpus: int, growth: Growth = Growth.WEAK) -> Setup:
    """The same model parallelism on another number of GPUs; groups of shards stay as large where there are replicas.

    Raises:
        BadValue: the degrees do not divide the GPUs, or the global batch has no sequence for each of them.
    """
    model = setup.tensor * setup.pipeline * setup.context
    if gpus < 1 or gpus % model:
        raise BadValue(f"{gpus} GPUs", why=f"tensor, pipeline and context parallelism need a multiple of {model}")
    data = gpus // model
    shards = setup.data // setup.replicas
    replicas = data // shards if setup.replicas > 1 and data % shards == 0 else 1
    micro, times = setup.micro_batch, setup.accumulation
    if growth is Growth.STRONG:
        if setup.global_batch % data:
            raise BadValue(f"{gpus} GPUs", why=f"{setup.global_batch} sequences give {data} ranks no equal shares")
        mine = setup.global_batch // data
        micro = max(each for each in range(1, min(micro, mine) + 1) if mine % each == 0)
        times = mine // micro
    return msgspec.structs.replace(
        setup, data=data, replicas=replicas, expert=gcd(setup.expert, data * setup.context), micro_batch=micro,
        accumulation=times,
    )  # fmt: skip


def curve(
    model: Transformer, setup: Setup, cluster: Cluster, gpus: Sequence[int],
    growth: Growth = Growth.WEAK, conditions: Conditions | None = None,
) -> Curve:  # fmt: skip
    """Throughput at each of these sizes, in rising order; nodes are as in ``cluster``.

    Raises:
        BadValue: the first size cannot be had.
    """
    steps: list[tuple[Cluster, Setup, Step]] = []
    ends = ""
    for size in sorted(set(gpus)):
        try:
            mine, there = resized(setup, size, growth), cluster.resized(size)
        except BadValue as error:
            if not steps:
                raise
            ends = str(error)
            break
        steps.append((there, mine, step(model, mine, there, conditions)))
    best = max(each.tokens_per_s_per_gpu for *_, each in steps)
    points: list[Point] = []
    for number, (there, mine, each) in enumerate(steps):
        efficiency = each.tokens_per_s_per_gpu / best
        why = ""
        if points and points[-1].efficiency - efficiency >= _BEND:
            why = reason(model, steps[number - 1], (there, mine, each), conditions)
        points.append(Point(gpus=there.gpus, setup=mine, step=each, efficiency=efficiency, reason=why))
    there, mine, _ = steps[-1]
    return Curve(growth=growth, points=tuple(points), remedies=remedies(model, mine, there, conditions), ends=ends)


# ---- why


def costs(each: Step) -> dict[str, float]:
    """GPU-seconds a token, by part of the step."""
    parts = {"computing": each.compute, "the pipeline's bubble": each.bubble, "the optimizer": each.optimizer,
             "waiting for the slowest rank or for data": each.waiting}  # fmt: skip
    parts |= {part.value: value for part, value in each.exposed.items()}
    return {name: value / each.seconds / each.tokens_per_s_per_gpu for name, value in parts.items()}


def reason(
    model: Transformer, before: tuple[Cluster, Setup, Step], after: tuple[Cluster, Setup, Step],
    conditions: Conditions | None = None,
) -> str:  # fmt: skip
    """Why a token costs more GPU-seconds than it did, in a sentence."""
    old, new = costs(before[2]), costs(after[2])
    grown = {name: value - old.get(name, 0.0) for name, value in new.items()}
    worst = max(grown, key=lambda name: grown[name])
    more = sum(value for value in grown.values() if value > 0)
    share = grown[worst] / more if more else 0.0
    said = f"{worst} ({share:.0%} of what was lost)"
    return f"{said}: {_how(model, worst, before, after, conditions or USUAL)}"


def _how(
    model: Transformer, worst: str, before: tuple[Cluster, Setup, Step], after: tuple[Cluster, Setup, Step],
    given: Conditions,
) -> str:  # fmt: skip
    cluster, setup, _ = after
    tokens = setup.micro_batch * setup.sequence // setup.context
    if worst == "the pipeline's bubble":
        had = before[1].accumulation
        return f"{setup.pipeline} stages have {setup.accumulation} micro-batches to fill them, where they had {had}"
    if worst == "computing":
        tokens = setup.micro_batch * setup.sequence // setup.context
        return f"a micro-batch of {tokens:,} tokens is too small for the GPU's matrix units"
    if worst == "the optimizer":
        return "a step has fewer tokens for it"
    if worst not in set(Part):
        return f"{cluster.gpus} ranks have a slower slowest one than {before[0].gpus}"
    return _of_part(model, Part(worst), before, after, given)


def _of_part(
    model: Transformer, part: Part, before: tuple[Cluster, Setup, Step], after: tuple[Cluster, Setup, Step],
    given: Conditions,
) -> str:  # fmt: skip
    """Of communication: latency, another node, or too little to hide behind."""
    cluster, setup, _ = after
    now = _largest(model, part, setup, cluster, given)
    if now is None:
        return "it was hidden before"
    call, group = now
    old = _largest(model, part, before[1], before[0], given)
    links = given.links(cluster)
    took = seconds(call.collective, call.nbytes, group, links)
    if latency(call.collective, group, links) > _LATENCY * took:
        size = f"{call.nbytes / 2**20:.3g} MiB"
        return f"calls of {size} over {group.ranks} ranks are mostly latency ({took * 1e6:,.0f} us each)"
    speed = f"{bus(call.collective, group, links) / 1e9:.3g} GB/s"
    if group.nodes > 1 and (old is None or old[1].nodes == 1):
        return f"its {group.ranks} ranks now stand in {group.nodes} nodes, which talk at {speed}"
    mine, had = (each.tokens_a_step // each.world_size for each in (setup, before[1]))
    where = f"{group.nodes} nodes" if group.nodes > 1 else "one node"
    if mine < had:
        return (
            f"{mine:,} tokens a step and GPU, where there were {had:,}, are too few to hide it at {speed} over {where}"
        )
    return f"{group.ranks} ranks in {where} talk at {speed}, and computation does not hide it"


def _largest(
    model: Transformer, part: Part, setup: Setup, cluster: Cluster, given: Conditions
) -> tuple[Call, Group] | None:
    """The largest call of a part, and where its ranks stand; None where there is nobody to call."""
    calls = [each for each in traffic(model, setup, given.bucket) if each.part is part and each.ranks > 1]
    call = max(calls, key=lambda each: each.nbytes, default=None)
    return None if call is None else (call, placed(cluster, call.ranks, call.stride))
