"""Where ranks may part: forks, loops, handlers and ways out whose sides enter different collectives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec
from msgspec.structs import replace

from holdfast.facts.code.effects import (
    YIELD,
    Called,
    Effect,
    Exit,
    Fork,
    Group,
    Loop,
    Note,
    Op,
    Place,
    Try,
    Way,
    ends,
    operations,
    shape,
    unfold,
)
from holdfast.facts.code.groups import by_leaders, left_out, made_of_others
from holdfast.facts.code.raising import catches, raises
from holdfast.facts.code.turns import in_turn, told_apart
from holdfast.facts.code.values import Kind, Sources, by_rank, kinds_of

#: So many operations of a way are compared one by one.
_MOST = 2000
_BARRIERS = frozenset({"barrier", "monitored_barrier", "wait_for_everyone"})


#: A test of an exception's text, and words of those that one rank has for itself.
_TEXT = re.compile(r"\bin str\(|\bre\.search\(.*str\(|\bin \w+\.args\b")
_OWN_FAULT = re.compile(r"memory|cuda|nccl|timed? ?out|nan\b|inf\b|connection|disk|space", re.IGNORECASE)
#: Exceptions that say nothing but that it is over.
_OVER = frozenset({"StopIteration", "StopAsyncIteration"})
#: What ends all ranks at once, as a rule.
_OF_ALL = frozenset({"KeyboardInterrupt", "SystemExit"})
#: A test of membership: ``if rank in ranks``.
_MEMBERS = re.compile(r"rank\w*(?:\(\w*\))? (?:not )?in [a-z_]", re.IGNORECASE)


class Parting(msgspec.Struct, frozen=True):
    """One place where ranks may part.

    ``kind`` says how: ``branch``, ``exit``, ``loop``, ``order``, ``except``, ``swallowed``, ``root``, ``shape``,
    ``ranks``, ``thread``, ``paired``, ``undecided``, and the notes' own. ``place`` is the line at fault, ``guard`` the
    test with its ``text``, ``sources`` why it differs, ``op`` the first collective that not all enter, ``chain`` the
    calls that lead to it; ``barrier`` says that a barrier follows, ``how`` with which word a rank leaves.
    """

    kind: str
    place: Place
    guard: Place
    text: str
    sources: Sources
    op: Op | None = None
    chain: tuple[Place, ...] = ()
    how: str = ""
    barrier: bool = False

    @property
    def by_rank(self) -> bool:
        """Nothing but the rank itself parts them."""
        return by_rank(self.sources)


def partings(way: Sequence[Effect], *, in_loop: bool = False, taken: frozenset[int] = frozenset()) -> Iterator[Parting]:
    """All partings of a function's own code; those of the functions that it calls are theirs.

    ``taken`` are forks where ranks take turns.
    """
    unfolded = unfold(way)
    taken |= in_turn(unfolded)
    for at, effect in enumerate(unfolded):
        match effect:
            case Fork() if id(effect) in taken:
                pass
            case Fork():
                follows = any(op.name in _BARRIERS for op, _ in islice(operations(unfolded[at + 1 :]), _MOST))
                for each in _fork(effect, in_loop=in_loop, barrier=follows):
                    leaders = each.kind == "branch" and by_leaders(each.op, each.sources, unfolded[:at])
                    yield msgspec.structs.replace(each, kind="leaders") if leaders else each
                yield from _members(effect)
                yield from _left_within(effect, unfolded[at + 1 :])
                yield from partings(effect.yes, in_loop=in_loop, taken=taken)
                yield from partings(effect.no, in_loop=in_loop, taken=taken)
            case Loop():
                yield from _loop(effect)
                yield from partings(effect.body, in_loop=bool(shape(effect.body)))
                yield from partings(effect.after)
            case Try():
                yield from _try(effect, unfolded[at + 1 :], in_loop=in_loop)
                yield from _lastly(effect)
                yield from partings(effect.body, in_loop=in_loop, taken=taken)
                for _, _, handled in effect.handlers:
                    yield from partings(handled, in_loop=in_loop)
                yield from partings(effect.last, in_loop=in_loop, taken=taken)
            case Note(name="root" | "shape" | "ranks" | "state", control=control):
                yield Parting(effect.name, effect.place, effect.place, effect.about, control)
            case _:
                pass


# ---- forks


def _fork(fork: Fork, *, in_loop: bool, barrier: bool) -> Iterator[Parting]:
    if not fork.test or _is_kind_of_file(fork):
        return
    fork = told_apart(fork)
    rank_only = by_rank(fork.test)
    one, other = ends(fork.own(fork.yes)), ends(fork.own(fork.no))
    if shape(fork.yes, rank_only=rank_only) == shape(fork.no, rank_only=rank_only):
        left = one or other
        if in_loop and left is not None and left.how in ("break", "return") and (one is None) != (other is None):
            yield Parting("left", left.place, fork.place, fork.text, fork.test, how=left.how)
        others = made_of_others(fork) if rank_only else None
        if others is not None:
            op, chain = others
            yield Parting("ranks", _shown(chain, fork.yes), fork.place, fork.text, fork.test, op, chain)
        return
    yield from _sides(fork, barrier=barrier, rank_only=rank_only)


def _is_kind_of_file(fork: Fork) -> bool:
    """What is there is loaded in one way or in another, or refused: nearly always all ranks see the same file."""
    if kinds_of(fork.test) != {Kind.FILES}:
        return False
    sides = [fork.own(side) or side for side in (fork.yes, fork.no)]
    left = [ends(side) for side in sides]
    refused = [end is not None and end.how == "raise" for end in left]
    return all(
        refuses or next(_counted(side, rank_only=False), None) is not None
        for side, refuses in zip(sides, refused, strict=True)
    )


def _sides(fork: Fork, *, barrier: bool, rank_only: bool) -> Iterator[Parting]:
    """The side of a fork that enters something which the other lacks."""
    one, other = ends(fork.own(fork.yes)), ends(fork.own(fork.no))
    for mine, its, opposite in ((fork.yes, fork.no, other), (fork.no, fork.yes, one)):
        extra = _extra(mine, its, rank_only=rank_only)
        if extra is None:
            continue
        op, chain = extra
        if op.kind == "sharded" and kinds_of(fork.test) == {Kind.FILES}:
            continue  # what all write and read together lies where all see it
        if op.chosen and rank_only and fork.picks is None and _MEMBERS.search(fork.text):
            continue  # the members of a group that was handed in, as a rule
        inside = any(each is op for each, _ in islice(operations(fork.own(mine)), _MOST))
        if inside or opposite is None:
            yield Parting("branch", _shown(chain, mine), fork.place, fork.text, fork.test, op, chain, "", barrier)
        elif opposite.how == "return" and _wrapped(chain, mine):
            text = f"if not ({fork.text.removeprefix('if ')})" if mine is fork.no else fork.text
            yield Parting("branch", _shown(chain, mine), fork.place, text, fork.test, op, chain, "", barrier)
        elif opposite.how != "raise":  # who raises ends, and the launcher ends the others
            yield Parting("exit", opposite.place, fork.place, fork.text, fork.test, op, chain, opposite.how)
        return


def _left_within(fork: Fork, rest: Sequence[Effect]) -> Iterator[Parting]:
    """On one side of a fork a test within it leaves, and what follows the fork is left out by some there alone."""
    rank_only = by_rank(fork.test)
    follows = shape(rest, rank_only=rank_only) if fork.test else ()
    if not follows:
        return
    for side, opposite in ((fork.yes, fork.no), (fork.no, fork.yes)):
        if next(_exits(opposite), None) is not None:
            continue
        for left, way in _exits(side):
            op, chain = next(_counted(rest, rank_only=rank_only), (None, ()))
            if op is not None and left.how != "raise" and shape(way, rank_only=rank_only) != follows:
                yield Parting("exit", left.place, fork.place, fork.text, fork.test, op, chain, left.how)
                return


def _exits(way: Sequence[Effect]) -> Iterator[tuple[Exit, Way]]:
    """Where tests within a way leave, each with what is entered from the test to there."""
    for effect in way:
        if isinstance(effect, Fork):
            for side in (effect.yes, effect.no):
                end = ends(side)
                if end is not None:
                    yield end, side
                else:
                    yield from _exits(side)


def _members(fork: Fork) -> Iterator[Parting]:
    """A test of the rank keeps members of a group away from its collective."""
    found = left_out(fork)
    if found is not None:
        op, chain = found
        said = ", ".join(map(str, op.members[:8]))
        yield Parting("members", chain[0], fork.place, fork.text, fork.test, op, chain, said)


def _extra(mine: Way, its: Way, *, rank_only: bool) -> tuple[Op, tuple[Place, ...]] | None:
    """The first operation of one way that the other lacks; None where the other has all of them."""
    have = [_name(op) for op, _ in _counted(its, rank_only=rank_only)]
    for op, chain in _counted(mine, rank_only=rank_only):
        if _name(op) in have:
            have.remove(_name(op))
        else:
            return op, chain
    if not have and shape(mine, rank_only=rank_only) != shape(its, rank_only=rank_only):
        return next(_counted(mine, rank_only=rank_only), None)
    return None


def _counted(way: Sequence[Effect], *, rank_only: bool) -> Iterator[tuple[Op, tuple[Place, ...]]]:
    for op, chain in islice(operations(way), _MOST):
        if op.kind not in ("send", "recv") and not (rank_only and op.group is not Group.WORLD):
            yield op, chain


def _name(op: Op) -> tuple[str, str]:
    return op.name, op.group.value


def _shown(chain: tuple[Place, ...], way: Way) -> Place:
    """The line to name: the call in the branch; of what only calls what it is given, the line in that."""
    at = 0
    while at < len(chain) - 1:
        called = _calls(way).get(chain[at])
        if called is None or not called.through:
            break
        way, at = called.within.way, at + 1
    return chain[at]


def _calls(way: Sequence[Effect]) -> dict[Place, Called]:
    """The calls of a way that enter something, by their lines; those that are innocent do not hide one beside them."""
    found: dict[Place, Called] = {}
    for effect in islice(way, _MOST):
        if isinstance(effect, Called):
            if effect.within.whole:
                found.setdefault(effect.place, effect)
        elif isinstance(effect, (Fork, Loop)):
            sides = (effect.yes, effect.no) if isinstance(effect, Fork) else (effect.body, effect.after)
            found = _calls(sides[1]) | _calls(sides[0]) | found
    return found


def _wrapped(chain: tuple[Place, ...], way: Sequence[Effect]) -> bool:
    """What is left out is what a wrapper was given, or what its class has from a base: the wrapper is its guard."""
    called = _calls(way).get(chain[0])
    return called is not None and called.through


def undecided(way: Sequence[Effect]) -> Iterator[Parting]:
    """Forks and loops of which it is not known whether all ranks take them alike, with what they enter."""
    for effect in unfold(way):
        match effect:
            case Fork(test=test, known=known, yes=yes, no=no):
                if not test and not known and shape(yes) != shape(no):
                    for each in _sides(effect, barrier=False, rank_only=False):
                        yield replace(each, kind="undecided")
                yield from undecided(yes)
                yield from undecided(no)
            case Loop(count=count, order=order, known=known, body=body, after=after):
                found = None if known or count or order else next(_counted(body, rank_only=False), None)
                if found is not None:
                    yield Parting("undecided", effect.place, effect.place, effect.text, (), *found)
                yield from undecided(body)
                yield from undecided(after)
            case Try(body=body, handlers=handlers, last=last):
                for block in (body, *(handled for _, _, handled in handlers), last):
                    yield from undecided(block)
            case _:
                pass


def is_doubtful(parting: Parting) -> bool:
    """Another file of the program asks whether files are there: as a rule of a storage that all ranks share."""
    elsewhere = bool(parting.sources) and all(each.file != parting.guard.file for each in parting.sources)
    return elsewhere and parting.kind in ("branch", "exit", "loop") and kinds_of(parting.sources) == {Kind.FILES}


# ---- loops


def _loop(loop: Loop) -> Iterator[Parting]:
    if not (loop.count or loop.order):
        return
    rank_only = bool(loop.count) and by_rank(loop.count)
    counted = _counted(loop.body, rank_only=rank_only)
    ddp = ("forward", "backward") if loop.joined else ()
    found = next((each for each in counted if each[0].kind not in ddp), None)
    if found is None:
        return
    op, chain = found
    if loop.count:
        yield Parting("loop", loop.place, loop.place, loop.text, loop.count, op, chain)
    else:
        yield Parting("order", loop.place, loop.place, loop.text, loop.order, op, chain)


# ---- exceptions


def _try(block: Try, tail: Sequence[Effect], *, in_loop: bool) -> Iterator[Parting]:
    if block.imports:
        return  # what is installed is so for all ranks
    rest = shape(tail)
    for place, what, handled in block.handlers:
        end, own = ends(handled), next(operations(handled), None)
        raised_on = end is not None and end.how == "raise"
        if raised_on and (own is None or what in _OF_ALL):
            continue
        fault: Sources = ()
        if own is not None:
            op, chain = own
            if _is_told(handled):
                continue
            yield Parting("except", _shown(chain, handled), place, f"except {what}".strip(), fault, op, chain)
            continue
        for raised, chain, skipped in raises(block.body, in_loop=in_loop):
            if not catches(what, raised.what) or raised.what in _OVER:
                continue
            if skipped is not None:
                op, level = skipped
                yield Parting(
                    "swallowed", chain[min(level, len(chain) - 1)], place, f"except {what}".strip(), fault, op, chain
                )
                break
            if end is not None and rest:
                first, _ = next(operations(tail), (None, ()))
                yield Parting("exit", end.place, place, f"except {what}".strip(), fault, first, chain, end.how)
                break


def _lastly(block: Try) -> Iterator[Parting]:
    """In ``finally`` a rank that raised enters what comes later for the others, who are still in the block."""
    waits = any(True for _ in islice(operations(block.body), 1))
    if not waits and not any(isinstance(each, Note) and each.name == YIELD for each in block.body):
        return
    for op, chain in islice(operations(block.last), _MOST):
        if op.kind not in ("send", "recv") and op.name not in _BARRIERS:  # a barrier there is part of a way down
            yield Parting("except", _shown(chain, block.last), block.place, "finally", (), op, chain)
            return


def _is_told(handled: Sequence[Effect]) -> bool:
    """Which exception it is tells its text, and any other is raised on: all have that one, but for lack of memory."""
    said = [each for each in handled if not isinstance(each, Note)]
    fork = said[0] if said else None
    if not isinstance(fork, Fork) or not _TEXT.search(fork.text) or _OWN_FAULT.search(fork.text):
        return False
    end = ends((*fork.own(fork.no), *said[1:]))
    return end is not None and end.how == "raise"
