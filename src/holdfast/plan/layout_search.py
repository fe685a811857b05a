"""The search itself: of each shape and way of sharing the fastest that fits, and of the rest what they need at least.

Shapes come in the order of a bound: what a step takes at least, without data-parallel communication and with nothing
computed again. A shape, or a way of sharing in it, whose bound is above the layouts that are answered, and not well
below what is known of any of its degrees, is left out: the answer stays the same, and of what lost the best is known
within the model's error.

Ways to save memory stand in the order of what they cost. With micro-batches from the smallest on, the first way that
fits is the fastest, and it never becomes milder as they grow: each is asked for from where the one before ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import msgspec

from holdfast.plan import layout_space as space
from holdfast.plan.hardware import Cluster
from holdfast.plan.layout_space import Options, Refused, Shape, Sharing
from holdfast.plan.memory import Answer, Footprint, footprint
from holdfast.plan.models import Transformer
from holdfast.plan.rates import USUAL, Conditions
from holdfast.plan.setup import Loss, Recompute, Schedule, Setup, Strategy
from holdfast.plan.time import Step, step
from holdfast.plan.traffic import Part
from holdfast.plan.work import micro_batch

_GIB = 1 << 30
#: A row of micro-batches ends when so many larger ones were no faster.
_PATIENCE = 2
#: Communication that nothing hides, whatever data-parallel ranks keep.
_ANY = Sharing(Strategy.FSDP2, 1, reshard=True)
_SERIAL = (Part.TENSOR, Part.CONTEXT, Part.EXPERT, Part.PIPELINE)


#: How the loss is computed, and what is computed again.
Saving = tuple[Loss, Recompute]
#: A schedule, and chunks of a stage.
Order = tuple[Schedule, int]


class Candidate(NamedTuple):
    """A layout that fits, and how fast it is."""

    shape: Shape
    sharing: Sharing
    setup: Setup
    needs: Footprint
    step: Step


class Least(NamedTuple):
    """What needs least of the layouts that do not fit."""

    setup: Setup
    needs: Footprint


class Question(NamedTuple):
    """What is searched for: :func:`ask` makes it. ``base``: what all layouts have alike.

    ``ladder``: ways to save memory in the order of the time that they cost; ``frugal``: the one that needs least.
    ``accepted``: what counts as fitting.
    """

    model: Transformer
    cluster: Cluster
    global_batch: int
    base: Setup
    options: Options
    conditions: Conditions
    ladder: tuple[Saving, ...]
    frugal: Saving
    accepted: tuple[Answer, ...] = (Answer.FITS,)

    @property
    def memory(self) -> int:
        """Bytes of a GPU."""
        return round(self.cluster.gpu.memory_gib * _GIB)

    def orders(self, shape: Shape) -> list[Order]:
        """Schedules and chunks with which the batch is met exactly; none where it cannot be with this shape."""
        mine, left = divmod(self.global_batch, shape.data)
        return [] if left or mine < shape.pipeline else list(space.orders(self.model, shape, mine, self.options))

    def sharings(self, shape: Shape) -> list[Sharing]:
        """What data-parallel ranks may keep; none where no strategy goes with the shape."""
        return list(space.sharings(shape, self.cluster, self.options, self.base))

    def allows(self, shape: Shape) -> bool:
        """Whether it may be an answer."""
        return space.allowed(shape, self.cluster, self.options)


class Seen:
    """What a search has found: the fastest by shape, strategy and replicas, and what lacks by value of each axis."""

    def __init__(self) -> None:
        self.fastest: dict[tuple[Shape, str, int], Candidate] = {}
        self.least: dict[tuple[str, object], Least] = {}
        self.refused: list[Refused] = []
        #: Values of axes with which the batch cannot be met, if no layout has them.
        self.unmet: set[tuple[str, object]] = set()
        #: Seconds of the fastest of an axis' value, and of a shape that may be answered.
        self.seconds: dict[tuple[str, object], float] = {}
        self.shapes: dict[Shape, float] = {}
        self.tried = 0
        self.fitting = 0

    def fits(self, found: Candidate, *, allowed: bool) -> None:
        """Keep it if it is faster than what is known of its shape and sharing; of equals the first stays."""
        self.fitting += 1
        key = found.shape, found.sharing.strategy.value, found.sharing.replicas
        known, took = self.fastest.get(key), found.step.seconds
        if known is not None and known.step.seconds <= took:
            return
        self.fastest[key] = found
        for axis in axes(found.shape, found.setup):
            self.seconds[axis] = min(took, self.seconds.get(axis, inf))
        if allowed:
            self.shapes[found.shape] = min(took, self.shapes.get(found.shape, inf))

    def enough(self, options: Options) -> float:
        """Seconds beyond which a layout is neither answered nor as good as the fastest."""
        best = sorted(self.shapes.values())[: options.most]
        return max(best[-1], best[0] * (1 + options.error)) if len(best) == options.most else inf

    def lacks(self, values: Sequence[tuple[str, object]], needs: Footprint, setup: Setup) -> None:
        """Keep it where nothing of an axis' value is known to need less."""
        total = needs.worst.total
        for axis in values:
            known = self.least.get(axis)
            if known is None or total < known.needs.worst.total:
                self.least[axis] = Least(setup, needs)


def axes(shape: Shape, setup: Setup) -> tuple[tuple[str, object], ...]:
    """The values by which layouts are grouped; the last one is of all."""
    return (
        ("strategy", setup.strategy), ("tensor", shape.tensor), ("pipeline", shape.pipeline),
        ("context", shape.context), ("expert", shape.expert), ("all", None),
    )  # fmt: skip


def search(question: Question) -> Seen:
    """Everything that the question allows."""
    seen = Seen()
    shapes, seen.refused = space.shapes(question.model, question.cluster, question.base.sequence, question.options)
    bounded = []
    for shape in shapes:
        orders = question.orders(shape)
        if orders:
            bounded.append((_bound(question, shape, orders, None), shape, orders))
        else:
            seen.unmet.update(axes(shape, question.base)[1:-1])
    for least, shape, orders in sorted(bounded):
        for sharing in question.sharings(shape):
            if _hopeful(question, shape, sharing, least, seen) and _hopeful(
                question, shape, sharing, _bound(question, shape, orders, sharing), seen
            ):
                _shared(question, shape, sharing, orders, seen)
    return seen


def _hopeful(question: Question, shape: Shape, sharing: Sharing, least: float, seen: Seen) -> bool:
    """Whether something that takes so long at least could be answered, or be the fastest of an axis' value."""
    if question.allows(shape) and least < seen.enough(question.options):
        return True
    values = (("strategy", sharing.strategy), *axes(shape, question.base)[1:-1])
    return any(least * (1 + question.options.error) < seen.seconds.get(axis, inf) for axis in values)


def _bound(
    question: Question, shape: Shape, orders: Sequence[Order], sharing: Sharing | None, level: int = 0
) -> float:  # fmt: skip
    """Seconds that a step takes at least, with the largest micro-batches and the bubble of the smallest.

    Without ``sharing``, whatever data-parallel ranks keep; memory is saved by ``level`` or more.
    """
    mine = question.global_batch // shape.data
    size = space.divisors(mine, space.LARGEST_MICRO)[-1]
    order, micro, saving = (Schedule.ONE_F_ONE_B, 1), (size, mine // size), question.ladder[level]
    run = space.setup(question.base, shape, sharing or _ANY, order, micro, saving)
    took = step(question.model, run, question.cluster, question.conditions)
    busy = took.compute + sum(took.exposed.get(part, 0.0) for part in _SERIAL)
    fewer = max(3 if schedule is Schedule.ZERO_BUBBLE else chunks for schedule, chunks in orders)
    bubble = busy * (shape.pipeline - 1) / fewer / mine
    return busy + bubble if sharing is None else took.seconds - took.bubble + bubble


def ask(
    model: Transformer, cluster: Cluster, global_batch: int, base: Setup, options: Options,
    conditions: Conditions = USUAL,
) -> Question:  # fmt: skip
    """The question, with ways to save memory in the order of the time that they cost: first the loss in chunks."""
    kinds = [each for each in options.recomputes if each is not Recompute.SELECTIVE or not base.flash]

    def again(kind: Recompute) -> float:
        run = msgspec.structs.replace(base, recompute=kind)
        return micro_batch(model, run, cluster.gpu, conditions).again

    by_time = sorted(kinds or [Recompute.NONE], key=again)
    loss = Loss.CHUNKED if base.loss is Loss.EAGER else base.loss
    ladder = tuple(dict.fromkeys([(base.loss, by_time[0]), *((loss, each) for each in by_time)]))
    frugal = (loss, kinds[-1] if kinds else Recompute.NONE)
    return Question(model, cluster, global_batch, base, options, conditions, ladder, frugal)


def fits_at_all(question: Question) -> bool:
    """Whether anything does, by what needs least of each shape and way of sharing."""
    for shape in space.shapes(question.model, question.cluster, question.base.sequence, question.options)[0]:
        for order in question.orders(shape) if question.allows(shape) else ():
            micro = next(space.micro_batches(shape, order[0], question.global_batch // shape.data))
            for sharing in question.sharings(shape):
                run = space.setup(question.base, shape, sharing, order, micro, question.frugal)
                if footprint(question.model, run, question.memory).answer is Answer.FITS:
                    return True
    return False


def _shared(
    question: Question, shape: Shape, sharing: Sharing, orders: Sequence[Order], seen: Seen
) -> None:  # fmt: skip
    """One shape and way of sharing in all orders.

    One micro-batch a step stands apart from several, with which gradients stay from one to the next.
    """
    mine = question.global_batch // shape.data
    for several in (True, False):
        rows = [
            (order, [each for each in space.micro_batches(shape, order[0], mine) if (each[1] > 1) == several])
            for order in orders
        ]
        rows = [row for row in rows if row[1]]
        level = _mildest(question, shape, sharing, rows[0][1][0], seen) if rows else None
        if level is None:
            continue
        if level and not _hopeful(question, shape, sharing, _bound(question, shape, orders, sharing, level), seen):
            continue
        for order, micros in rows:
            _row(question, (shape, sharing, order), micros, level, seen)


def _mildest(
    question: Question, shape: Shape, sharing: Sharing, micro: tuple[int, int], seen: Seen
) -> int | None:  # fmt: skip
    """The mildest way to save memory with which the smallest micro-batch fits in 1F1B, which keeps least; or none."""
    for level, saving in enumerate((question.frugal, *question.ladder), -1):
        run = space.setup(question.base, shape, sharing, (Schedule.ONE_F_ONE_B, 1), micro, saving)
        needs = footprint(question.model, run, question.memory)
        seen.tried += 1
        if needs.answer in question.accepted and level >= 0:
            return level
        if needs.answer not in question.accepted and level < 0:
            seen.lacks(axes(shape, run)[: None if question.allows(shape) else -1], needs, run)
            return None
    return None


def _row(
    question: Question, of: tuple[Shape, Sharing, Order], micros: Sequence[tuple[int, int]], level: int, seen: Seen
) -> None:  # fmt: skip
    """One shape, sharing and schedule with larger and larger micro-batches, saving memory from ``level`` on."""
    shape, sharing, order = of
    allowed, slower, best = question.allows(shape), 0, 0.0
    for micro in micros:
        while level < len(question.ladder):
            run = space.setup(question.base, shape, sharing, order, micro, question.ladder[level])
            needs = footprint(question.model, run, question.memory)
            seen.tried += 1
            if needs.answer in question.accepted:
                break
            level += 1
        else:
            seen.lacks(axes(shape, run)[: None if allowed else -1], needs, run)
            return
        took = step(question.model, run, question.cluster, question.conditions)
        seen.fits(Candidate(shape, sharing, run, needs, took), allowed=allowed)
        slower = slower + 1 if took.tokens_per_s <= best else 0
        best = max(best, took.tokens_per_s)
        if slower == _PATIENCE:
            return
