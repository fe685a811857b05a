"""How long a step takes, and on what: of a model in a setup on a cluster.

Products of matrices at the rate that GPUs reach for their size, attention at its kernel's, everything else by the bytes
that it moves; then communication, as far as computation does not hide it; then the pipeline's bubble, the slowest rank
and the optimizer. Nothing is measured here: the numbers are of :mod:`holdfast.plan.rates`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log, sqrt

import msgspec

from holdfast.errors import BadValue
from holdfast.plan.communication import placed, seconds
from holdfast.plan.hardware import Cluster
from holdfast.plan.models import Transformer
from holdfast.plan.rates import USUAL, Conditions
from holdfast.plan.setup import Schedule, Setup
from holdfast.plan.traffic import Call, Part, stage_layers, traffic
from holdfast.plan.work import Work, dtype, micro_batch, update


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a step, and what they go to; the parts sum to it.

    ``compute``: products, attention and what moves memory. ``exposed``: communication that nothing hides, with what it
    slows down, by what it is for. ``bubble``: waiting for a pipeline to fill and drain. ``waiting``: for the slowest
    rank and for data. ``hidden``: communication that computation hides, which is no part of the sum.
    """

    seconds: float
    compute: float
    exposed: dict[Part, float]
    bubble: float
    optimizer: float
    waiting: float
    hidden: dict[Part, float]
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    #: Of the peak, by the model's own operations, and by all that are computed.
    mfu: float
    hfu: float

    @property
    def communication(self) -> float:
        """All that is exposed."""
        return sum(self.exposed.values())


def step(model: Transformer, setup: Setup, cluster: Cluster, conditions: Conditions | None = None) -> Step:
    """The time of an optimizer step.

    Raises:
        BadValue: the setup needs another number of GPUs, or a dtype that they do not have.
    """
    given = conditions or USUAL
    if setup.world_size != cluster.gpus:
        raise BadValue(f"the setup for {cluster}", why=f"it needs {setup.world_size} GPUs, not {cluster.gpus}")
    work = micro_batch(model, setup, cluster.gpu, given)
    compute = (work.forward + work.backward + work.again) * setup.accumulation
    calls = traffic(model, setup, given.bucket)
    exposed, hidden = communication(calls, stage_layers(model, setup), setup, cluster, given, work)
    serial = sum(exposed.get(part, 0.0) for part in (Part.TENSOR, Part.CONTEXT, Part.EXPERT, Part.PIPELINE))
    bubble = _bubble(setup) * (compute + serial) / setup.accumulation
    needed = model.flops_a_token(setup.sequence, causal=setup.flash) * setup.tokens_a_step
    spent = Spent(
        compute=compute, exposed=exposed, hidden=hidden, bubble=bubble,
        optimizer=update(model, setup, cluster.gpu, given), needed=needed, computed=needed * (1 + work.again_share / 3),
    )  # fmt: skip
    return summed(spent, setup, cluster, given)


class Spent(msgspec.Struct, kw_only=True, gc=False):
    """Seconds of a step before ranks have waited for each other; operations that are needed, and that are computed."""

    compute: float
    exposed: dict[Part, float]
    hidden: dict[Part, float]
    bubble: float
    optimizer: float
    needed: float
    computed: float


def summed(spent: Spent, setup: Setup, cluster: Cluster, given: Conditions) -> Step:
    """The parts as a step, with what ranks wait for."""
    optimizer = spent.optimizer + given.rates.step_s
    late = max(0.0, given.slowest - 1.0) + given.jitter * sqrt(2 * log(setup.world_size))
    waiting = late * (spent.compute + optimizer) + given.loading_s
    total = spent.compute + sum(spent.exposed.values()) + spent.bubble + optimizer + waiting
    a_second = setup.tokens_a_step / total
    could = cluster.gpus * total * cluster.gpu.peak(dtype(setup, cluster.gpu, given))
    return Step(
        seconds=total, compute=spent.compute, exposed=spent.exposed, bubble=spent.bubble, optimizer=optimizer,
        waiting=waiting, hidden=spent.hidden, tokens_per_s=a_second, tokens_per_s_per_gpu=a_second / cluster.gpus,
        mfu=spent.needed / could, hfu=spent.computed / could,
    )  # fmt: skip


# ---- waiting


def _bubble(setup: Setup) -> float:
    """Micro-batches' times that a stage waits: D. Narayanan et al. (2021) §2.2; P. Qi et al., "Zero Bubble" (2023)."""
    ahead = setup.pipeline - 1
    if setup.schedule is Schedule.INTERLEAVED:
        return ahead / setup.chunks
    return ahead / 3 if setup.schedule is Schedule.ZERO_BUBBLE else float(ahead)


# ---- communication


def communication(
    calls: Sequence[Call], layers: int, setup: Setup, cluster: Cluster, given: Conditions, work: Work
) -> tuple[dict[Part, float], dict[Part, float]]:
    """Seconds of a step by what they are for: those that computation waits for, and those that it hides."""
    links = given.links(cluster)
    phases: tuple[list[tuple[Part, float]], ...] = ([], [], [])
    exposed: dict[Part, float] = {}
    hidden: dict[Part, float] = {}
    times = setup.accumulation
    for call in calls:
        each = seconds(call.collective, call.nbytes, placed(cluster, call.ranks, call.stride), links)
        if each == 0.0:
            continue
        if call.part is Part.GATHER and call.once:  # the optimizer has to be done, and forward waits
            exposed[call.part] = exposed.get(call.part, 0.0) + each * call.once
        elif call.part in _HIDDEN:
            if call.forward:
                phases[0].append((call.part, each * call.forward))
            if call.backward:
                phases[1].append((call.part, each * call.backward))
            if call.once:
                phases[2].append((call.part, each * call.once))
        else:
            kept = given.rates.overlapped_tensor if call.part is Part.TENSOR and given.tensor_overlap else 1.0
            exposed[call.part] = exposed.get(call.part, 0.0) + kept * each * (call.forward + call.backward) * times
    back = work.backward + work.again
    for phase, room, repeats in zip(phases, (work.forward, back, back), (times, times, 1), strict=True):
        _overlap(phase, room, repeats, layers, given, exposed, hidden)
    return exposed, hidden


_HIDDEN = (Part.GATHER, Part.REDUCE, Part.REPLICAS)


def _overlap(
    phase: list[tuple[Part, float]], room: float, repeats: int, layers: int, given: Conditions,
    exposed: dict[Part, float], hidden: dict[Part, float],
) -> None:  # fmt: skip
    """Add what of a phase's communication stays when ``room`` seconds are computed beside it.

    That is what does not fit, the first or last layer's, and what the rest costs computation.
    """
    if not phase:
        return
    total = sum([seconds for _, seconds in phase])
    within = min(total * (1 - 1 / (layers + 1)), room) if given.prefetch else 0.0
    left = total - within + given.rates.interference * within
    stays, goes = left / total * repeats, (total - left) / total * repeats
    for part, each in phase:
        exposed[part] = exposed.get(part, 0.0) + each * stays
        hidden[part] = hidden.get(part, 0.0) + each * goes
