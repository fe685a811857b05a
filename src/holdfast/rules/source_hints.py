"""Which findings of the linter a run bears out.

A finding is believed where the collective that it says not all ranks enter is the one that, in the run, some ranks made
and others did not, from the same line and through the same call. Nothing else is ever used.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from holdfast.facts.ranks import Group, Operation, Place, RankState
from holdfast.findings import Fact, Finding
from holdfast.report.ranksets import compress_ranks
from holdfast.rules.places import Source

#: Verdicts about a rank that died; where it died in a collective, that may be because the others were in another one.
DEATHS = frozenset({"segfault-in-worker", "oom-on-one-rank-then-timeout", "python-exception-on-one-rank"})
#: Those that are about one call which all make from one line.
_ONE_LINE = frozenset({"mismatched-operation", "mismatched-shape", "mismatched-dtype", "collective-mismatch"})
_ONE_LINE_KINDS = frozenset({"order", "thread", "shape", "root"})
#: What a rank raises that reads what another one has not written yet.
_UNREADABLE = ("FileNotFoundError", "EOFError", "JSONDecodeError", "UnpicklingError", "BadZipFile")
#: How sure a verdict is where the ranks first differ at this collective, and where they only wait at it now.
_FIRST, _NOW = 0.95, 0.8


class Hint(msgspec.Struct, frozen=True, kw_only=True):
    """One finding of the linter and the lines that it speaks of.

    ``kind`` is that of the parting, ``gravity`` the number of its rule among all (0 is the gravest). ``call`` is the
    line of the collective that not all enter, ``creates`` says that it makes a group, and ``path`` are the lines of the
    calls that lead to it, the outermost first; empty where they lead to what raises instead.
    """

    finding: Finding
    rule: str
    kind: str
    gravity: int
    place: Place
    guard: Place
    call: Place | None = None
    creates: bool = False
    path: tuple[Place, ...] = ()


@dataclass(frozen=True)
class _Split:
    """A collective that ranks did not all make: who made which call at this number, and who made none.

    ``first``: it is the first such of the group, as far as the ranks remember; else what they wait in now. ``lost``:
    they may have differed before, at what they no longer remember.
    """

    group: str
    sequence: int
    calls: Mapping[int, Operation]
    lacking: tuple[int, ...]
    first: bool
    lost: bool


@dataclass(frozen=True)
class Match:
    """A hint that the run bears out: the ranks that made its call, those that did not, and what shows it."""

    hint: Hint
    makers: tuple[int, ...]
    others: tuple[int, ...]
    facts: tuple[Fact, ...]
    confidence: float
    sequence: int = 0


def borne_out(
    root: Finding, ranks: Sequence[RankState], groups: Mapping[str, Group], source: Source, hints: Sequence[Hint]
) -> Match | None:
    """The gravest of the hints that what was seen of the ranks bears out, where the verdict is ``root``."""
    for matches in (_of_splits, _of_stacks, _of_one_line, _of_groups, _of_files):
        found = sorted(matches(root, ranks, groups, source, hints), key=lambda each: each.hint.gravity)
        if found:
            return found[0]
    return None


def died_of_others(state: RankState) -> bool:
    """Whether what the other ranks did may have ended the rank: in a collective, or at a file."""
    return _died_in(state) is not None or _unread(state) is not None


def _died_in(state: RankState) -> Operation | None:
    """The collective in which the rank was aborted (SIGABRT, as gloo does), or raised."""
    aborted = state.exit_code == -signal.SIGABRT and bool(state.pending)
    last = max((*state.recent, *state.pending), key=lambda call: call.entered, default=None)
    if aborted or last is None or last.site is None:
        return last if aborted else None
    raised = state.raised.place if state.raised is not None else None
    return last if raised is not None and _same(raised, last.site) else None


def _unread(state: RankState) -> Place | None:
    """Where the rank could not read a file."""
    raised = state.raised
    return raised.place if raised is not None and raised.type.rpartition(".")[2] in _UNREADABLE else None


# ---- collectives that not all ranks made


def _of_splits(
    root: Finding, ranks: Sequence[RankState], groups: Mapping[str, Group], source: Source, hints: Sequence[Hint]
) -> Iterator[Match]:
    """Hints about the collective at which the ranks first differ; where there is none, at which they differ now."""
    splits = list(_splits(ranks, groups))
    if root.cause in DEATHS:  # nothing but what it died in
        calls = [_died_in(state) for state in ranks if state.rank == root.subject.rank]
        splits = [each for each in splits if any(call in each.calls.values() for call in calls if call is not None)]
    for first in (True, False):
        found = [
            match
            for split in splits
            if split.first is first
            for hint in hints
            if (match := _of_split(hint, split, source)) is not None
        ]
        if found:
            yield from found
            return


def _splits(ranks: Sequence[RankState], groups: Mapping[str, Group]) -> Iterator[_Split]:
    table: dict[str, dict[int, dict[int, Operation]]] = defaultdict(lambda: defaultdict(dict))
    for state in ranks:
        for call in (*state.recent, *state.pending):
            if not call.is_point_to_point:
                table[call.group][state.rank][call.sequence] = call
    waited = {(call.group, call.sequence) for state in ranks for call in state.pending if call.certain}
    for name, made in table.items():
        begin = max(min(mine) for mine in made.values())  # what the shortest memory still has
        first = True
        for number in sorted({number for mine in made.values() for number in mine if number >= begin}):
            calls = {rank: mine[number] for rank, mine in made.items() if number in mine}
            lacking = tuple(state.rank for state in ranks if _lacks(state, groups.get(name), name, number))
            if lacking or len({(call.name, call.site, call.caller) for call in calls.values()}) > 1:
                if first or (name, number) in waited:
                    yield _Split(name, number, calls, lacking, first, number == begin > 1)
                first = False


def _lacks(state: RankState, group: Group | None, name: str, number: int) -> bool:
    """Whether a member of the group has not come to that collective of it."""
    if group is not None and group.ranks is not None and state.rank not in group.ranks:
        return False
    if not state.groups and state.unseen:
        return False  # nothing is known of its calls
    if any(call.group == name and call.sequence < number for call in state.pending):
        return False  # it is late, and may come to it yet
    return name not in state.groups or state.groups[name].entered < number


def _of_split(hint: Hint, split: _Split, source: Source) -> Match | None:
    makers = tuple(rank for rank, call in sorted(split.calls.items()) if _is_of(hint, call, source))
    others = tuple(sorted({*split.calls, *split.lacking} - {*makers}))
    if not makers or not others:
        return None
    which = f"collective #{split.sequence} of group {split.group!r}"
    facts = [_made(which, split.calls[rank], rank) for rank in (makers[0], *others[:1]) if rank in split.calls]
    if others[0] in split.lacking:
        absent = tuple(rank for rank in others if rank in split.lacking)
        facts.append(Fact(text=f"{which}: rank{'s' * (len(absent) > 1)} {compress_ranks(absent)} never came to it",
                          origin=f"box of rank {absent[0]}", rank=absent[0]))  # fmt: skip
    return Match(hint, makers, others, tuple(facts), _FIRST if split.first and not split.lost else _NOW, split.sequence)


def _made(which: str, call: Operation, rank: int) -> Fact:
    through = f", called at {_short(call.caller)}" if call.caller is not None else ""
    where = f" at {_short(call.site)}{through}" if call.site is not None else ""
    return Fact(text=f"{which}: rank {rank} makes {call.name}{where}", origin=f"box of rank {rank}", rank=rank,
                time=call.entered or None)  # fmt: skip


def _is_of(hint: Hint, call: Operation, source: Source) -> bool:
    """Whether this call is the hint's collective, reached by its way."""
    if call.site is None:
        return False
    if hint.kind == "loop" and _in_loop(hint.place, call, source):
        return True
    if hint.call is None or not _same(hint.call, call.site):
        return False
    if call.caller is None or len(hint.path) < 2:
        return True
    return any(_same(each, call.caller) for each in (hint.place, *hint.path[:-1]))


def _in_loop(header: Place, call: Operation, source: Source) -> bool:
    """Whether the call, or what called its function, stands in the loop that begins on this line."""
    around = [source[each] for each in (call.site, call.caller)
              if each is not None and each in source and each.file == header.file]  # fmt: skip
    return any(loop.first == header.line for seen in around for loop in seen.loops)


def _same(one: Place, other: Place) -> bool:
    return (one.file, one.line) == (other.file, other.line)


# ---- stacks, calls that all make from one line, groups, files


def _of_stacks(
    _: Finding, ranks: Sequence[RankState], _groups: Mapping[str, Group], _source: Source, hints: Sequence[Hint]
) -> Iterator[Match]:
    """Where nothing tells of the calls: some ranks are on the whole way to the collective now, others are not in it."""
    if any(state.recent for state in ranks):
        return
    lines = {
        state.rank: {(frame.file, frame.line) for frame in state.stacks[-1].frames} for state in ranks if state.stacks
    }
    for hint in hints:
        if hint.call is None or not hint.path:
            continue
        call, way = (hint.call.file, hint.call.line), {(each.file, each.line) for each in hint.path}
        makers = tuple(rank for rank, mine in lines.items() if way <= mine)
        others = tuple(rank for rank, mine in lines.items() if call not in mine)
        if makers and others:
            yield Match(hint, makers, others, (), _NOW)


def _of_one_line(
    root: Finding, ranks: Sequence[RankState], _: Mapping[str, Group], source: Source, hints: Sequence[Hint]
) -> Iterator[Match]:
    """All ranks make the same call from the same line, with other things: its order or its arguments differ.

    gloo may abort a rank that is sent more than it awaits.
    """
    mine = next((state for state in ranks if state.rank == root.subject.rank), RankState(rank=-1))
    subject = Place(root.subject.file or "", root.subject.line or 0)
    calls = [call for call in (*mine.pending, *mine.recent) if call.site is not None and _same(call.site, subject)]
    died_in = _died_in(mine) if root.cause in DEATHS else None
    if died_in is not None:
        calls = [died_in]
    elif root.cause not in _ONE_LINE:
        return
    for hint in hints:
        lines = (hint.place, *(hint.path[-1:]))
        looped = hint.kind == "order" and any(_in_loop(hint.place, call, source) for call in calls)
        sites = [call.site for call in calls if call.site is not None]
        if hint.kind in _ONE_LINE_KINDS and (looped or any(_same(at, each) for at in sites for each in lines)):
            yield Match(hint, (), (), (), round(min(root.confidence + 0.2, 0.9), 2))


def _of_groups(
    _: Finding, ranks: Sequence[RankState], groups: Mapping[str, Group], _source: Source, hints: Sequence[Hint]
) -> Iterator[Match]:
    """Ranks that wait where a group is made; or made one of the same name from the same line, with other members."""
    namesakes: dict[str, list[Group]] = defaultdict(list)
    for group in groups.values():
        namesakes[group.name.partition(" of (")[0]].append(group)
    waited = {call.group for state in ranks for call in state.pending}
    torn = [each for each in namesakes.values() if len(each) > 1 and any(group.name in waited for group in each)]
    for hint in hints:
        if not hint.creates or hint.call is None:
            continue
        if any(_makes_group(hint.call, call) for state in ranks for call in state.pending):
            yield Match(hint, (), (), (), _NOW)
        elif torn and any(_makes_group(hint.call, call) for state in ranks for call in state.recent):
            names = " and ".join(f"{list(group.ranks or ())}" for group in torn[0][:4])
            text = f"the ranks made groups of one name with other members: {names}"
            yield Match(hint, (), (), (Fact(text=text, origin="boxes"),), _NOW)


def _makes_group(line: Place, call: Operation) -> bool:
    return call.group.startswith("new_group") and call.site is not None and _same(line, call.site)


def _of_files(
    root: Finding, ranks: Sequence[RankState], _: Mapping[str, Group], _source: Source, hints: Sequence[Hint]
) -> Iterator[Match]:
    """A rank could not read what another one had not written yet."""
    for state in ranks:
        place = _unread(state) if state.rank == root.subject.rank and root.cause in DEATHS else None
        for hint in hints if place is not None else ():
            if hint.kind == "file" and place is not None and _same(hint.place, place):
                yield Match(hint, (), (), (), 0.8)


def _short(place: Place) -> str:
    return f"{place.file.rsplit('/', 1)[-1]}:{place.line}"
