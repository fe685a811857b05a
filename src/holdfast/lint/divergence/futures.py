"""The collectives that a rank still enters from a point on, up to the end of the function.

The paths of a function form a control-flow graph: each point has one continuation per way to leave
its block (its end, ``return``, ``break``, ``continue``), through ``finally`` and back to the head
of a loop. Two points are compatible if ranks at them can meet again: they enter the same
collectives in the same order, or raise.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.lint.abstract_domain.conditions import Conditions, conditions_of_side, decided_by
from holdfast.lint.abstract_domain.effects import (
    PROCESS_EXIT,
    SINGLE_JOB,
    Branch,
    Effect,
    EffectPath,
    EffectSummary,
    ExitEffect,
    FunctionCall,
    GroupScope,
    LoopEffect,
    Marker,
    Operation,
    Try,
    iter_operations,
    unfold_early_exits,
)

#: Futures without collectives: the function ends; the rank raises, which ends the job; its process
#: exits while the job goes on; the ends of one iteration of a loop.
END, ABORT, PROCESS_END, NEXT, LEFT, RETURNED = range(6)
_LAST = RETURNED


class Goal:
    """A point at which a rank continues; here: one without collectives."""

    def __init__(self, future: int) -> None:
        self._future = future

    def future(self, _: Futures) -> int:
        """Return what a rank at this point still enters."""
        return self._future

    def operations(self) -> Iterator[tuple[Operation, int]]:
        """Yield the operations that follow in source order, each with its call depth."""
        yield from ()


class Targets(msgspec.Struct, frozen=True, eq=False):
    """Where a block continues: at its end, and after ``continue``, ``break`` and ``return``."""

    normal: Goal
    next: Goal
    left: Goal
    returned: Goal

    def through(self, final_body: EffectPath, depth: int) -> Targets:
        """Return these targets behind a ``finally`` block."""
        if not final_body:
            return self
        return Targets(*(
            Block(final_body, replace(self, normal=goal), depth).point(0)
            for goal in (self.normal, self.next, self.left, self.returned)
        ))  # fmt: skip


_END, _PROCESS_END = Goal(END), Goal(PROCESS_END)
#: The targets of a function, and of one iteration of a loop.
FUNCTION_TARGETS = Targets(_END, _END, _END, _END)
_ITERATION = Targets(Goal(NEXT), Goal(NEXT), Goal(LEFT), Goal(RETURNED))


class Block:
    """A path with its targets; ``depth`` is the number of calls that lead to it.

    ``facts`` are the tests that lead to it, which all ranks answer alike, with their answers.
    ``settled``: ranks that answer these tests differently enter the same collectives on the whole.
    """

    def __init__(
        self,
        path: EffectPath,
        targets: Targets,
        depth: int = 0,
        facts: tuple[tuple[str, bool], ...] = (),
        settled: frozenset[Conditions] = frozenset(),
    ) -> None:
        self.facts, self.settled = facts, settled
        self.path: tuple[Any, ...] = path
        self.targets = targets
        self.depth = depth
        self._futures: dict[Futures, list[int]] = {}

    def point(self, at: int) -> Point:
        """Return the point in front of an effect."""
        return Point(self, at)

    def nested(self, path: EffectPath, at: int) -> Block:
        """Return a block that continues behind the effect at this index."""
        return self._within(path, replace(self.targets, normal=self.point(at + 1)))

    def _within(self, path: EffectPath, targets: Targets) -> Block:
        return Block(path, targets, self.depth, self.facts, self.settled)

    def side(self, path: EffectPath, at: int) -> Block:
        """Return a block for one side of the branch at this index, in its unfolded form."""
        branch: Branch = self.path[at]
        inner = self.nested(unfold_early_exits(path), at)
        if not branch.taint:
            inner.facts = (*self.facts, (branch.text, path is branch.yes))
        return inner

    def loop_body(self, path: EffectPath, at: int) -> Block:
        """Return a block for the body of the loop at this index."""
        head, after = LoopHead(self, at), self.point(at + 1)
        return self._within(path, Targets(head, head, after, self.targets.returned))

    def guarded(self, path: EffectPath, at: int) -> Block:
        """Return a block for the body or a handler of the ``try`` at this index."""
        targets = replace(self.targets, normal=self.point(at + 1))
        return self._within(path, targets.through(self.path[at].final_body, self.depth))

    def called(self, at: int) -> Block:
        """Return the body of the function called at this index."""
        after = self.point(at + 1)
        path = self.path[at].callee.path
        return Block(path, Targets(after, after, after, after), self.depth + 1)

    def inner(self, at: int) -> Iterator[Block]:
        """Yield the blocks of the effect at this index that ranks enter without an exception.

        Of called functions, only those that may end the process.
        """
        match self.path[at]:
            case Branch(yes=yes, no=no):
                yield self.nested(yes, at)
                yield self.nested(no, at)
            case LoopEffect(body=body, orelse=after):
                yield self.loop_body(body, at)
                yield self.nested(after, at)
            case Try(body=body):
                yield self.guarded(body, at)
            case FunctionCall(callee=callee) if PROCESS_EXIT in callee.tags:
                yield self.called(at)
            case _:
                pass

    def futures(self, futures: Futures) -> list[int]:
        """Return the future in front of each effect, and at the end."""
        known = self._futures.get(futures)
        if known is None:
            known = self._futures[futures] = futures.of_path(self.path, self.targets)
        return known


class Point(Goal):
    """The point in front of an effect of a block."""

    def __init__(self, block: Block, at: int) -> None:
        self.block, self.at = block, at

    def future(self, futures: Futures) -> int:
        """Return what a rank at this point still enters."""
        return self.block.futures(futures)[self.at]

    def operations(self) -> Iterator[tuple[Operation, int]]:
        """Yield the operations that follow in source order, each with its call depth."""
        block = self.block
        for op, _ in iter_operations(block.path[self.at :]):
            yield op, block.depth
        yield from block.targets.normal.operations()


class LoopHead(Point):
    """The head of a loop, to which an iteration returns."""

    @property
    def loop(self) -> LoopEffect:
        """Return the loop."""
        loop: LoopEffect = self.block.path[self.at]
        return loop

    def iteration(self) -> Block:
        """Return the block of one iteration."""
        return self.block.loop_body(self.loop.body, self.at)


class _Step(msgspec.Struct, frozen=True):
    """A future that begins with a collective, or with a loop of collectives (``iteration``)."""

    operation: Hashable
    iteration: int
    after: int


class _Fork(msgspec.Struct, frozen=True):
    """A future that depends on a test; all ranks answer it equally, also where it recurs."""

    text: str
    yes: int
    no: int


class _Futures:
    """The numbers of futures, and which of them are compatible."""

    def __init__(self) -> None:
        self.nodes: list[_Step | _Fork | None] = [None] * (_LAST + 1)
        self.numbers: dict[_Step | _Fork, int] = {}
        self.compared: dict[tuple[int, int], bool] = {}


class Futures:
    """Futures as numbers: equal futures have equal numbers.

    ``rank_only`` omits operations of sub-groups. ``assumed``: conditions that hold on all ranks.
    """

    def __init__(
        self,
        *,
        rank_only: bool,
        assumed: Conditions = frozenset(),
        table: _Futures | None = None,
    ) -> None:
        self._rank_only = rank_only
        self._assumed = assumed
        self._iterations: dict[int, tuple[int, frozenset[int], bool]] = {}
        self._table = table if table is not None else _Futures()

    def assuming(self, conditions: Conditions) -> Futures:
        """Return the futures of ranks for which these conditions hold, comparable with these."""
        assumed = self._assumed | conditions
        return Futures(rank_only=self._rank_only, assumed=assumed, table=self._table)

    # ---- construction

    def of_path(self, path: Sequence[Effect], targets: Targets) -> list[int]:
        """Return the future in front of each effect of a path, and at its end."""
        future = targets.normal.future(self)
        futures = [future]
        for effect in reversed(path):
            future = self._before(effect, future, targets)
            futures.append(future)
        futures.reverse()
        return futures

    def _of_path(self, path: Sequence[Effect], targets: Targets, after: int) -> int:
        return self.of_path(path, replace(targets, normal=Goal(after)))[0] if path else after

    def _before(self, effect: Effect, after: int, targets: Targets) -> int:
        """Return the future in front of an effect."""
        future = after
        if _starts_single_job(effect):
            return ABORT
        match effect:
            case Operation(name=name, group=group):
                if counts(effect, rank_only=self._rank_only):
                    future = self._number(_Step((name, group.value), END, after))
            case FunctionCall(callee=callee):
                future = self._call(callee, after)
            case Branch(text=text, yes=yes, no=no):
                answer = decided_by(self._assumed, text) if self._assumed else None
                if answer is None:
                    sides = [self._of_path(side, targets, after) for side in (yes, no)]
                    future = self._fork(text, *sides)
                else:
                    future = self._of_path(yes if answer else no, targets, after)
            case LoopEffect():
                future = self._loop(effect, after, targets)
            case Try(body=body, final_body=last):
                inner = replace(targets, normal=Goal(after)).through(last, 0)
                future = self.of_path(body, inner)[0]
            case ExitEffect(keyword=keyword):
                goal = _exit_goal(keyword, targets)
                future = ABORT if goal is None else goal.future(self)
            case _:
                pass
        return future

    def _call(self, callee: EffectSummary, after: int) -> int:
        if callee.tags & {PROCESS_EXIT, SINGLE_JOB}:
            returned = Goal(after)
            targets = Targets(returned, returned, returned, returned)
            return self._of_path(callee.path, targets, after)
        for part in reversed(callee.world_sequence if self._rank_only else callee.sequence):
            after = self._number(_Step(part, END, after))
        return after

    def _loop(self, loop: LoopEffect, after: int, targets: Targets) -> int:
        known = self._iterations.get(id(loop))
        if known is None:
            iteration = self.of_path(loop.body, _ITERATION)[0]
            known = self._iterations[id(loop)] = (iteration, *self._reached(iteration))
        iteration, ends, has_collectives = known
        future = self._of_path(loop.orelse, targets, after)
        for end, goal in ((LEFT, after), (PROCESS_END, PROCESS_END)):
            future = self._fork(loop.text, future, goal) if end in ends else future
        if RETURNED in ends:
            future = self._fork(loop.text, future, targets.returned.future(self))
        return self._number(_Step("loop", iteration, future)) if has_collectives else future

    def _number(self, node: _Step | _Fork) -> int:
        number = self._table.numbers.get(node)
        if number is None:
            number = self._table.numbers[node] = len(self._table.nodes)
            self._table.nodes.append(node)
        return number

    def _fork(self, text: str, yes: int, no: int) -> int:
        """Return the future in front of a test; a side that raises ends the job."""
        if yes in (no, ABORT):
            return no
        return yes if no == ABORT else self._number(_Fork(text, yes, no))

    # ---- queries

    def _reached(self, future: int) -> tuple[frozenset[int], bool]:
        """Return the futures that a rank with this future reaches; True if it has collectives."""
        reached: set[int] = set()
        has_collectives = False
        pending = [future]
        while pending:
            candidate = pending.pop()
            if candidate in reached:
                continue
            reached.add(candidate)
            match self._table.nodes[candidate]:
                case _Step(after=after):
                    has_collectives = True
                    pending.append(after)
                case _Fork(yes=yes, no=no):
                    pending += (yes, no)
                case None:
                    pass
        return frozenset(reached), has_collectives

    def reaches(self, future: int, target: int) -> bool:
        """Return True if a rank with this future may get to a point with the other future."""
        return target in self._reached(future)[0]

    def can_meet(self, one: Goal, other: Goal) -> bool:
        """Return True if ranks at these points can meet: equal futures, or one of them raises."""
        return self.compatible(one.future(self), other.future(self))

    def compatible(self, one: int, other: int) -> bool:
        """Return True if ranks with these futures can meet: equal, or one of them raises."""
        compared: list[tuple[int, int]] = []
        while True:
            if one == other or ABORT in (one, other):
                answer = True
                break
            known = self._table.compared.get((one, other))
            if known is not None:
                answer = known
                break
            compared.append((one, other))
            first, second = self._table.nodes[one], self._table.nodes[other]
            if not isinstance(first, _Step) or not isinstance(second, _Step):
                answer = self._equal_forks(one, other)
                break
            if first.operation != second.operation or not self.compatible(
                first.iteration, second.iteration
            ):
                answer = False
                break
            one, other = first.after, second.after
        self._table.compared.update(dict.fromkeys(compared, answer))
        return answer

    def _equal_forks(self, one: int, other: int) -> bool:
        """Compare two futures of which one depends on a test."""
        first, second = self._table.nodes[one], self._table.nodes[other]
        if isinstance(first, _Fork) and isinstance(second, _Fork):
            same = self.compatible(first.yes, second.yes) and self.compatible(first.no, second.no)
            if same or first.text == second.text:
                return same
            if self.compatible(first.yes, second.no) and self.compatible(first.no, second.yes):
                return True
        if isinstance(first, _Fork) and self.compatible(first.yes, other):
            return self.compatible(first.no, other)
        if isinstance(second, _Fork) and self.compatible(one, second.yes):
            return self.compatible(one, second.no)
        return False


def iter_exits(
    block: Block, conditions: Conditions = frozenset()
) -> Iterator[tuple[ExitEffect, Goal, Conditions]]:
    """Yield the exits of a block and of what is nested in it, each with where it leads.

    And with the conditions equal on all ranks that lead to it, besides ``conditions``.
    """
    for at, effect in enumerate(block.path):
        if isinstance(effect, ExitEffect):
            goal = _exit_goal(effect.keyword, block.targets)
            if goal is not None:
                yield effect, goal, conditions
            return
        for number, inner in enumerate(block.inner(at)):
            below = conditions
            if isinstance(effect, Branch) and not effect.taint:
                below |= conditions_of_side(effect.text, answer=not number)
            for end, goal, holding in iter_exits(inner, below):
                if _leaves(end.keyword, effect):
                    yield end, goal, holding


def _starts_single_job(effect: Effect) -> bool:
    """Return True if the process goes on alone: it sets ``WORLD_SIZE`` to 1, unless it is 1."""
    match effect:
        case Marker(name=name):
            return name == SINGLE_JOB
        case Branch(text=text, yes=yes, no=no) if "world_size" in text.lower():
            bodies = (*effect.branch_body(yes), *effect.branch_body(no))
            return any(isinstance(each, Marker) and each.name == SINGLE_JOB for each in bodies)
        case _:
            return False


def _leaves(keyword: str, effect: Effect) -> bool:
    """Return True if an exit leads out of the effect that contains it."""
    if isinstance(effect, FunctionCall):
        return keyword == PROCESS_EXIT
    return not isinstance(effect, LoopEffect) or keyword in ("return", PROCESS_EXIT)


def counts(op: Operation, *, rank_only: bool = False) -> bool:
    """Return True for a collective to compare; ``rank_only`` omits those of sub-groups."""
    return op.kind not in ("send", "recv") and not (rank_only and op.group is not GroupScope.WORLD)


def _exit_goal(keyword: str, targets: Targets) -> Goal | None:
    """Return where an exit leads; None if ranks that take it need no further comparison."""
    return {
        "return": targets.returned,
        "break": targets.left,
        "continue": targets.next,
        PROCESS_EXIT: _PROCESS_END,
    }.get(keyword)
