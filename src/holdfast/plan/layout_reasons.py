"""Why a layout is as fast as it is, what keeps it from being faster, and why others lost."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.plan import layout_space as space
from holdfast.plan.communication import bus, placed
from holdfast.plan.layout_search import Candidate, Question, Seen, axes
from holdfast.plan.memory import Answer, Footprint, footprint
from holdfast.plan.scaling import costs
from holdfast.plan.setup import Loss, Setup, Strategy
from holdfast.plan.traffic import Part, traffic

_GIB = 1 << 30
#: Parts of a step that are worth a word, as a share of it.
_WORTH = 0.02
#: As people write them.
NAMES = {
    Strategy.DDP: "DDP", Strategy.ZERO1: "ZeRO-1", Strategy.ZERO2: "ZeRO-2", Strategy.ZERO3: "ZeRO-3",
    Strategy.FSDP1: "FSDP1", Strategy.FSDP2: "FSDP2",
}  # fmt: skip


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """A value of an axis that the best layout does not have, and why.

    ``behind``: how much slower the fastest with it is, as a share of the best's tokens a second; None where none fits
    or none can be. ``setup``: that fastest one, or the one that needs least.
    """

    axis: str
    value: str
    why: str
    behind: float | None = None
    setup: Setup | None = None

    def __str__(self) -> str:
        fastest = f"; the fastest with it is {described(self.setup)}" if self.setup and self.behind is not None else ""
        return f"{self.axis} {self.value}: {self.why}{fastest}"


def strategy(setup: Setup) -> str:
    """As people write it: HSDP where there are replicas of shards; "-" where there is nobody to share with."""
    if setup.data * setup.context == 1:
        return "-"
    name = "HSDP" if setup.replicas > 1 else NAMES[setup.strategy]
    kept = setup.shards_parameters and not setup.reshard
    return f"{name}, weights kept" if kept else name


def data(setup: Setup) -> str:
    """Data-parallel ranks; of HSDP, replicas times the ranks of each."""
    return f"{setup.replicas} x {setup.data // setup.replicas}" if setup.replicas > 1 else str(setup.data)


def described(setup: Setup) -> str:
    """In a few words: "HSDP, data 4 x 32, tensor 8, pipeline 4, micro-batch 2 x 16"."""
    degrees = [(name, getattr(setup, name)) for name in ("tensor", "pipeline", "context", "expert")]
    alone = setup.data * setup.context == 1
    parts = [] if alone else [strategy(setup), f"data {data(setup)}"]
    parts += [f"{name} {degree}" for name, degree in degrees if degree > 1]
    return ", ".join([*parts, f"micro-batch {setup.micro_batch} x {setup.accumulation}"])


# ---- of a layout that is answered


def reasons(question: Question, found: Candidate) -> tuple[str, ...]:
    """Where its time goes, what is said of the largest communication, and what memory forbids."""
    said = [_where(found)]
    exposed = found.step.exposed
    if exposed:
        part = max(exposed, key=lambda each: exposed[each])
        if exposed[part] > _WORTH * found.step.seconds:
            said.append(f"{part}: {_group(question, found.setup, part)}")
    said += _bound(question, found)
    if found.setup.pipeline > 1 and (more := space.imbalance(question.model, found.setup.pipeline, found.setup.chunks)):
        said.append(f"{question.model.layers} layers leave the fullest stage {more:.1%} more than the average")
    return tuple(said)


def _where(found: Candidate) -> str:
    step = found.step
    parts = {"computing": step.compute, "the pipeline's bubble": step.bubble, "the optimizer": step.optimizer,
             "waiting": step.waiting}  # fmt: skip
    parts |= {part.value: value for part, value in step.exposed.items()}
    large = sorted(((value, name) for name, value in parts.items() if value >= _WORTH * step.seconds), reverse=True)
    return "time goes to " + ", ".join(f"{name} {value / step.seconds:.0%}" for value, name in large)


def _group(question: Question, run: Setup, part: Part) -> str:
    """Who talks in this part's largest call, and how fast."""
    calls = [call for call in traffic(question.model, run, question.conditions.bucket) if call.part is part]
    call = max(calls, key=lambda each: each.nbytes)
    group = placed(question.cluster, call.ranks, call.stride)
    speed = bus(call.collective, group, question.conditions.links(question.cluster)) / 1e9
    where = f"stand in {group.nodes} nodes, which" if group.nodes > 1 else "stand in one node and"
    return f"its {call.ranks} ranks {where} talk at {speed:.3g} GB/s"


def _bound(question: Question, found: Candidate) -> Iterator[str]:
    """What would be faster, but does not fit."""
    run, steps = found.setup, question.ladder
    room = question.memory / _GIB
    place = steps.index((run.loss, run.recompute))
    if place:
        milder = msgspec.structs.replace(run, loss=steps[place - 1][0], recompute=steps[place - 1][1])
        needs = footprint(question.model, milder, question.memory)
        chosen, other = _saving(run), _saving(milder)
        differs = chosen[0] if chosen[0] != other[0] else chosen[1]
        instead = other[0] if chosen[0] != other[0] else other[1]
        yield f"{differs}, as {instead} {_would(needs)} {_size(needs.worst.total)} of {room:.1f} GiB"
    mine = question.global_batch // run.data
    larger = next(
        (each for each in space.micro_batches(found.shape, run.schedule, mine) if each[0] > run.micro_batch), None
    )
    if larger is None:
        return
    wider = msgspec.structs.replace(run, micro_batch=larger[0], accumulation=larger[1])
    needs = footprint(question.model, wider, question.memory)
    if needs.answer is not Answer.FITS:
        yield f"micro-batches of {larger[0]} {_would(needs)} {_size(needs.worst.total)} of {room:.1f} GiB"


def _would(needs: Footprint) -> str:
    return "would be tight with" if needs.answer is Answer.TIGHT else "would need"


def _saving(run: Setup) -> tuple[str, str]:
    """How the loss is computed, and what is computed again."""
    loss = "the loss in chunks" if run.loss is Loss.CHUNKED else "the whole loss at once"
    return loss, f"recompute {run.recompute.value}"


def _size(nbytes: float) -> str:
    return f"{nbytes / _GIB:.1f}"


# ---- of those that lost


def lost(question: Question, seen: Seen, best: Candidate | None) -> tuple[Lost, ...]:
    """Each value of an axis that the best does not have, the nearest to it first within an axis."""
    groups: dict[tuple[str, object], Candidate] = {}
    for each in seen.fastest.values():
        for axis in axes(each.shape, each.setup)[:-1]:
            if axis not in groups or each.step.seconds < groups[axis].step.seconds:
                groups[axis] = each
    mine = set(axes(best.shape, best.setup)) if best else set()
    slower = sorted((each for each in groups.items() if each[0] not in mine), key=lambda each: each[1].step.seconds)
    found = [_slower(question, axis, best, each) for axis, each in slower if best]
    for axis, least in seen.least.items():
        if axis not in groups and axis[0] != "all":
            needs = _size(least.needs.worst.total)
            tight = least.needs.answer is Answer.TIGHT
            how = f"tight at best, within the estimate's {least.needs.error:.0%}" if tight else "does not fit"
            why = f"{how}: {needs} of {question.memory / _GIB:.1f} GiB at least"
            found.append(Lost(axis=axis[0], value=_value(axis[1]), why=why, setup=least.setup))
    found += [
        Lost(axis=axis, value=_value(value), why=f"{question.global_batch} sequences give its ranks no equal shares")
        for axis, value in seen.unmet
        if (axis, value) not in groups and (axis, value) not in seen.least
    ]
    found += [Lost(axis=each.axis, value=str(each.value), why=each.why) for each in seen.refused]
    order = ("strategy", "tensor", "pipeline", "context", "expert")
    return tuple(sorted(found, key=lambda each: (order.index(each.axis), each.behind is None, each.behind or 0.0)))


def _value(value: object) -> str:
    return NAMES[value] if isinstance(value, Strategy) else str(value)


def _slower(question: Question, axis: tuple[str, object], best: Candidate, other: Candidate) -> Lost:
    behind = 1 - other.step.tokens_per_s / best.step.tokens_per_s
    before, after = costs(best.step), costs(other.step)
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    worst = max(grown, key=lambda name: grown[name])
    forbidden = ""
    if axis[0] == "tensor" and other.shape.tensor > question.cluster.per_node and not question.options.across:
        forbidden = "crosses nodes, "
    why = f"{forbidden}{behind:.1%} slower by {worst} ({_how(question, worst, best.setup, other.setup)})"
    return Lost(axis=axis[0], value=_value(axis[1]), why=why, behind=behind, setup=other.setup)


def _how(question: Question, worst: str, best: Setup, other: Setup) -> str:
    if worst in set(Part):
        return _group(question, other, Part(worst))
    if worst == "the pipeline's bubble":
        return f"{other.pipeline} stages have {other.accumulation} micro-batches to fill them"
    if worst == "computing" and other.recompute is not best.recompute:
        return f"recompute {other.recompute.value}, so that it fits"
    if worst == "computing":
        tokens = other.micro_batch * other.sequence // other.context
        return f"micro-batches of {tokens:,} tokens over {other.tensor} tensor-parallel ranks"
    return "each rank has more of the weights" if worst == "the optimizer" else "ranks wait for each other"
