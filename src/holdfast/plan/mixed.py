"""A batch over GPUs of several kinds that nobody has measured yet.

Speeds are by the model of time, limits by that of memory, and then :mod:`holdfast.plan.batches` deals out exactly. For
ranks that were measured there is :mod:`holdfast.plan.speeds`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.errors import BadValue
from holdfast.plan.batches import Allotment, Kind, Meeting, allot
from holdfast.plan.hardware import Cluster, Links
from holdfast.plan.memory import Answer, footprint
from holdfast.plan.models import Transformer
from holdfast.plan.rates import USUAL, Conditions
from holdfast.plan.setup import Setup, Strategy
from holdfast.plan.time import step
from holdfast.plan.traffic import GATHERING
from holdfast.plan.work import micro_batch

_GIB = 1 << 30


def allotment(
    model: Transformer, setup: Setup, parts: Sequence[Cluster], batch: int, conditions: Conditions | None = None
) -> Allotment:
    """Who computes how many of ``batch`` sequences, so that a step takes least; ``setup`` says how all is divided.

    Raises:
        BadValue: ranks that share a sequence, not one fits, or the batch cannot be met exactly.
    """
    found = kinds(model, setup, parts, batch, conditions)
    at_each = setup.strategy in GATHERING or setup.strategy is Strategy.ZERO2
    meeting = Meeting.MICRO_BATCH if at_each else Meeting.STEP
    return allot(found, batch, meeting, meet_s(model, setup, parts, conditions))


def kinds(
    model: Transformer, setup: Setup, parts: Sequence[Cluster], most: int, conditions: Conditions | None = None
) -> tuple[Kind, ...]:
    """Each part as a kind of GPU: times of micro-batches of 1, 2, … sequences, as far as they fit and up to ``most``.

    Raises:
        BadValue: ranks that share a sequence, or GPUs on which not one sequence fits.
    """
    given = conditions or USUAL
    world = sum(part.gpus for part in parts)
    if setup.tensor * setup.pipeline * setup.context > 1:
        raise BadValue("GPUs of several kinds", why="only data-parallel ranks can have unequal shares")
    found = []
    for part in parts:
        memory = int(part.gpu.memory_gib * _GIB)
        times: list[float] = []
        while len(times) < most:
            mine = msgspec.structs.replace(
                setup, data=world, replicas=1, expert=1, micro_batch=len(times) + 1, accumulation=1
            )
            if footprint(model, mine, memory).answer is not Answer.FITS:
                break
            work = micro_batch(model, mine, part.gpu, given)
            times.append(work.forward + work.backward + work.again)
        if not times:
            raise BadValue(
                f"{model.name} on {part.gpu.name}", why=f"not one sequence of {setup.sequence} tokens is sure to fit",
                next_step="divide more (FSDP2, ZeRO-3), recompute activations, or shorten sequences",
            )  # fmt: skip
        found.append(Kind(part.gpu.name, part.gpus, tuple(times)))
    return tuple(found)


def joined(parts: Sequence[Cluster]) -> Cluster:
    """The parts as one cluster that is nowhere better than the worst of them.

    Raises:
        BadValue: there are none.
    """
    if not parts:
        raise BadValue("a cluster of no parts", why="there has to be one")
    node = min(part.per_node for part in parts)
    gpus = sum(part.gpus for part in parts)
    while gpus % node:
        node -= 1
    slowest = min(parts, key=lambda part: part.gpu.peak(part.gpu.half)).gpu
    links = Links(
        inside=min(part.links.inside for part in parts), outside=min(part.links.outside for part in parts),
        inside_s=max(part.links.inside_s for part in parts), outside_s=max(part.links.outside_s for part in parts),
        bus=min(part.links.bus for part in parts),
    )  # fmt: skip
    return Cluster(slowest, node, gpus // node, links)


def meet_s(model: Transformer, setup: Setup, parts: Sequence[Cluster], conditions: Conditions | None = None) -> float:
    """Seconds of a meeting that computation does not hide, all parts being as slow as the slowest."""
    together = joined(parts)
    alone = msgspec.structs.replace(setup, data=together.gpus, replicas=1, expert=1, accumulation=1)
    return step(model, alone, together, conditions).communication
