"""Selects the linter's findings that the run confirms.

A finding is confirmed if the collective that, according to it, not all ranks enter is one that some
ranks made in the run and others did not, from the same line and through the same caller. No other
finding is used.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from holdfast.causes.memory.oom_on_one_rank_then_timeout import OOM_ON_ONE_RANK_THEN_TIMEOUT
from holdfast.causes.process.python_exception_on_one_rank import PYTHON_EXCEPTION_ON_ONE_RANK
from holdfast.causes.process.segfault_in_worker import SEGFAULT_IN_WORKER
from holdfast.causes.sync.collective_mismatch import COLLECTIVE_MISMATCH
from holdfast.causes.sync.mismatched_dtype import MISMATCHED_DTYPE
from holdfast.causes.sync.mismatched_operation import MISMATCHED_OPERATION
from holdfast.causes.sync.mismatched_shape import MISMATCHED_SHAPE
from holdfast.core.findings import Fact, Finding
from holdfast.core.rank_sets import describe_ranks
from holdfast.core.rank_table import ProcessGroupInfo, RankState, RecordedCall, SourceLine
from holdfast.watcher.rules.call_sites import SourceContexts
from holdfast.watcher.rules.new_groups import NEW_GROUP, groups_of_one_name, members_text

#: Causes of a rank's death; if it died in a collective, the others may have been in another one.
DEATHS = frozenset(
    {SEGFAULT_IN_WORKER.name, OOM_ON_ONE_RANK_THEN_TIMEOUT.name, PYTHON_EXCEPTION_ON_ONE_RANK.name}
)
#: Causes that concern one call, which all ranks make from one line.
_ONE_LINE = frozenset(
    {
        MISMATCHED_OPERATION.name,
        MISMATCHED_SHAPE.name,
        MISMATCHED_DTYPE.name,
        COLLECTIVE_MISMATCH.name,
    }
)
_ONE_LINE_KINDS = frozenset({"order", "thread", "shape", "root"})
#: Kinds that explain one of these causes only, besides a death in the call.
_CAUSE_OF_KIND = {"shape": MISMATCHED_SHAPE.name, "root": COLLECTIVE_MISMATCH.name}
#: Exceptions of a rank that reads a file which another rank has not written yet.
_READ_ERRORS = ("FileNotFoundError", "EOFError", "JSONDecodeError", "UnpicklingError", "BadZipFile")
#: Confidence if the ranks first differ at this collective, and if they only wait in it now.
_CONFIDENCE_FIRST, _CONFIDENCE_WAITING = 0.95, 0.8
#: Least confidence of a verdict that knows which rank made the odd call.
_CONFIDENCE_ODD = 0.8


class SourceHint(msgspec.Struct, frozen=True, kw_only=True):
    """One finding of the linter and its lines.

    ``kind`` is that of the divergence, ``gravity`` the index of its rule (0 is the most severe).
    ``call`` is the line of the collective that not all ranks enter, ``creates`` means that it
    creates a group, and ``path`` holds the lines of the calls that lead to it, the outermost first;
    empty if they lead to the line that raises instead.
    """

    finding: Finding
    rule: str
    kind: str
    gravity: int
    place: SourceLine
    guard: SourceLine
    call: SourceLine | None = None
    creates: bool = False
    path: tuple[SourceLine, ...] = ()


@dataclass(frozen=True)
class _PartialCollective:
    """A sequence number at which not all ranks made one call: calls by rank, and missing ranks.

    ``first``: it is the first of its kind in the recorded calls of the group; otherwise ranks wait
    in it now. ``incomplete``: ranks may have differed in earlier calls, which are not recorded.
    ``new``: the ranks with a call that no rank made before.
    """

    group: str
    sequence: int
    calls: Mapping[int, RecordedCall]
    missing: tuple[int, ...]
    first: bool
    incomplete: bool
    new: tuple[int, ...]


@dataclass(frozen=True)
class HintMatch:
    """A confirmed hint: the ranks that made its call, those that did not, and the evidence."""

    hint: SourceHint
    makers: tuple[int, ...]
    others: tuple[int, ...]
    facts: tuple[Fact, ...]
    confidence: float
    sequence: int = 0


def best_match(
    root: Finding,
    ranks: Sequence[RankState],
    groups: Mapping[str, ProcessGroupInfo],
    source: SourceContexts,
    hints: Sequence[SourceHint],
) -> HintMatch | None:
    """Return the most severe hint that the run confirms, for the verdict ``root``."""
    for find_matches in _MATCHERS:
        matches = (
            match
            for match in find_matches(root, ranks, groups, source, hints)
            if not _is_contradicted(match, root)
        )
        best = min(matches, key=lambda match: match.hint.gravity, default=None)
        if best is not None:
            return best
    return None


def _is_contradicted(match: HintMatch, root: Finding) -> bool:
    """Return whether a rank should have skipped the call that in the run only the odd rank made.

    That rank repeats the call. On a tie, which rank is odd is uncertain.
    """
    return (
        match.hint.kind == "swallowed"
        and root.cause in _ONE_LINE
        and root.subject.rank in match.makers
        and root.confidence >= _CONFIDENCE_ODD
    )


def may_have_died_of_others(state: RankState) -> bool:
    """Return whether other ranks may have caused the death: in a collective, or by a file."""
    return _died_in(state) is not None or _unreadable_at(state) is not None


def _died_in(state: RankState) -> RecordedCall | None:
    """Return the collective in which the rank was aborted (SIGABRT, as gloo does), or raised."""
    aborted = state.exit_code == -signal.SIGABRT and bool(state.pending)
    last = max((*state.recent, *state.pending), key=lambda call: call.entered, default=None)
    if aborted or last is None or last.site is None:
        return last if aborted else None
    raised_at = state.raised.place if state.raised is not None else None
    return last if raised_at is not None and _is_same_line(raised_at, last.site) else None


def _unreadable_at(state: RankState) -> SourceLine | None:
    """Return the line at which the rank could not read a file."""
    raised = state.raised
    if raised is None or raised.type.rpartition(".")[2] not in _READ_ERRORS:
        return None
    return raised.place


# ---- collectives that not all ranks made


def _match_partial_collectives(
    root: Finding,
    ranks: Sequence[RankState],
    groups: Mapping[str, ProcessGroupInfo],
    source: SourceContexts,
    hints: Sequence[SourceHint],
) -> Iterator[HintMatch]:
    """Match the collective at which ranks first differ, else those in which they differ now."""
    partials = list(_partial_collectives(ranks, groups))
    if root.cause in DEATHS:  # only the collective in which the rank died
        calls = [_died_in(state) for state in ranks if state.rank == root.subject.rank]
        partials = [
            partial
            for partial in partials
            if any(call in partial.calls.values() for call in calls if call is not None)
        ]
    for first in (True, False):
        matches = [
            match
            for partial in partials
            if partial.first is first
            for hint in hints
            if (match := _match_partial_collective(hint, partial, source)) is not None
        ]
        if matches:
            yield from matches
            return


def _partial_collectives(
    ranks: Sequence[RankState], groups: Mapping[str, ProcessGroupInfo]
) -> Iterator[_PartialCollective]:
    table: dict[str, dict[int, dict[int, RecordedCall]]] = defaultdict(lambda: defaultdict(dict))
    for state in ranks:
        for call in (*state.recent, *state.pending):
            if not call.is_point_to_point:
                table[call.group][state.rank][call.sequence] = call
    waited = {
        (call.group, call.sequence) for state in ranks for call in state.pending if call.certain
    }
    for name, by_rank in table.items():
        begin = max(min(own) for own in by_rank.values())  # the oldest number that all recorded
        numbers = {number for own in by_rank.values() for number in own if number >= begin}
        first, made = True, set[Hashable]()
        for number in sorted(numbers):
            calls = {rank: own[number] for rank, own in by_rank.items() if number in own}
            new = tuple(rank for rank, call in calls.items() if _key(call) not in made)
            made.update(map(_key, calls.values()))
            missing = tuple(
                state.rank
                for state in ranks
                if _has_not_entered(state, groups.get(name), name, number)
            )
            if missing or len({*map(_key, calls.values())}) > 1:
                if first or (name, number) in waited:
                    yield _PartialCollective(
                        name, number, calls, missing, first, number == begin > 1, new
                    )
                first = False


def _key(call: RecordedCall) -> Hashable:
    return call.name, call.site, call.caller


def _has_not_entered(
    state: RankState, group: ProcessGroupInfo | None, name: str, number: int
) -> bool:
    """Return whether a member of the group has not entered that collective and is not late."""
    if group is not None and group.ranks is not None and state.rank not in group.ranks:
        return False
    if not state.groups and state.unseen:
        return False  # its calls are unknown
    if any(call.group == name and call.sequence < number for call in state.pending):
        return False  # it is late and may still enter
    return name not in state.groups or state.groups[name].entered < number


def _match_partial_collective(
    hint: SourceHint, partial: _PartialCollective, source: SourceContexts
) -> HintMatch | None:
    makers = tuple(
        rank for rank, call in sorted(partial.calls.items()) if _is_call_of(hint, call, source)
    )
    others = tuple(sorted({*partial.calls, *partial.missing} - {*makers}))
    if not makers or not others or _is_still_in_test(hint, partial, others):
        return None
    which = f"collective #{partial.sequence} of group {partial.group!r}"
    facts = [
        _call_fact(which, partial.calls[rank], rank)
        for rank in (makers[0], *others[:1])
        if rank in partial.calls
    ]
    if others[0] in partial.missing:
        absent = tuple(rank for rank in others if rank in partial.missing)
        facts.append(
            Fact(
                text=f"{which}: {describe_ranks(absent)} never entered it",
                origin=f"trace of rank {absent[0]}",
                rank=absent[0],
            )
        )
    is_certain = partial.first and not partial.incomplete
    return HintMatch(
        hint,
        makers,
        others,
        tuple(facts),
        _CONFIDENCE_FIRST if is_certain else _CONFIDENCE_WAITING,
        partial.sequence,
    )


def _is_still_in_test(hint: SourceHint, partial: _PartialCollective, others: Sequence[int]) -> bool:
    """Return whether a rank that should have left is in a new call that the test itself makes."""
    lines = [
        line
        for rank in others
        if rank in partial.new
        for line in (partial.calls[rank].site, partial.calls[rank].caller)
    ]
    return hint.kind == "exit" and any(
        line is not None and _is_same_line(hint.guard, line) for line in lines
    )


def _call_fact(which: str, call: RecordedCall, rank: int) -> Fact:
    through = f", called at {call.caller.short}" if call.caller is not None else ""
    where = f" at {call.site.short}{through}" if call.site is not None else ""
    return Fact(
        text=f"{which}: rank {rank} makes {call.name}{where}",
        origin=f"trace of rank {rank}",
        rank=rank,
        time=call.entered or None,
    )


def _is_call_of(hint: SourceHint, call: RecordedCall, source: SourceContexts) -> bool:
    """Return whether this call is the collective of the hint, reached by its path."""
    if call.site is None:
        return False
    if hint.kind == "loop" and _is_in_loop(hint.place, call, source):
        return True
    if hint.kind == "exit" and _is_skipped_too(hint, call, source):
        return True
    if hint.call is None or not _is_same_line(hint.call, call.site):
        return False
    if call.caller is None or len(hint.path) < 2:
        return True
    return any(_is_same_line(line, call.caller) for line in (hint.place, *hint.path[:-1]))


def _is_in_loop(header: SourceLine, call: RecordedCall, source: SourceContexts) -> bool:
    """Return whether the call, or its caller, is in the loop that begins on this line."""
    contexts = [
        source[line]
        for line in (call.site, call.caller)
        if line is not None and line in source and line.file == header.file
    ]
    return any(loop.first == header.line for context in contexts for loop in context.loops)


def _is_skipped_too(hint: SourceHint, call: RecordedCall, source: SourceContexts) -> bool:
    """Return whether an exit from an iteration skips this call like that of the hint.

    Both follow the exit in the body of one loop: a library may communicate in a later call than in
    the one that the linter knows (a forward pass, and the gradients of its backward pass).
    """
    skipped = hint.call
    if skipped is None or skipped.file != hint.place.file:
        return False
    return any(
        loop.first <= hint.place.line < min(line.line, skipped.line)
        and max(line.line, skipped.line) <= loop.last
        for line in (call.site, call.caller)
        if line is not None and line.file == hint.place.file and line in source
        for loop in source[line].loops
    )


def _is_same_line(one: SourceLine, other: SourceLine) -> bool:
    return (one.file, one.line) == (other.file, other.line)


# ---- stacks, one line, groups, files


def _match_stacks(
    _: Finding,
    ranks: Sequence[RankState],
    _groups: Mapping[str, ProcessGroupInfo],
    _source: SourceContexts,
    hints: Sequence[SourceHint],
) -> Iterator[HintMatch]:
    """Match stacks if no calls are recorded: some contain the path, others not even the call."""
    if any(state.recent for state in ranks):
        return
    lines = {
        state.rank: {(frame.file, frame.line) for frame in state.stacks[-1].frames}
        for state in ranks
        if state.stacks
    }
    for hint in hints:
        if hint.call is None or not hint.path:
            continue
        call, path = (hint.call.file, hint.call.line), {(at.file, at.line) for at in hint.path}
        makers = tuple(rank for rank, own in lines.items() if path <= own)
        others = tuple(rank for rank, own in lines.items() if call not in own)
        if makers and others:
            yield HintMatch(hint, makers, others, (), _CONFIDENCE_WAITING)


def _match_one_line(
    root: Finding,
    ranks: Sequence[RankState],
    _: Mapping[str, ProcessGroupInfo],
    source: SourceContexts,
    hints: Sequence[SourceHint],
) -> Iterator[HintMatch]:
    """Match a call that all ranks make from one line, in another order or with other arguments.

    gloo may abort a rank that receives more than it expects.
    """
    own = next((state for state in ranks if state.rank == root.subject.rank), RankState(rank=-1))
    subject = SourceLine(root.subject.file or "", root.subject.line or 0)
    calls = [
        call
        for call in (*own.pending, *own.recent)
        if call.site is not None and _is_same_line(call.site, subject)
    ]
    died_in = _died_in(own) if root.cause in DEATHS else None
    if died_in is not None:
        calls = [died_in]
    elif root.cause not in _ONE_LINE:
        return
    sites = [call.site for call in calls if call.site is not None]
    for hint in hints:
        explained = _CAUSE_OF_KIND.get(hint.kind, root.cause)
        if hint.kind not in _ONE_LINE_KINDS or (died_in is None and explained != root.cause):
            continue
        lines = (hint.place, *(hint.path[-1:]))
        is_in_loop = hint.kind == "order" and any(
            _is_in_loop(hint.place, call, source) for call in calls
        )
        if is_in_loop or any(_is_same_line(site, line) for site in sites for line in lines):
            yield HintMatch(hint, (), (), (), round(min(root.confidence + 0.2, 0.9), 2))


def _match_groups(
    _: Finding,
    ranks: Sequence[RankState],
    groups: Mapping[str, ProcessGroupInfo],
    _source: SourceContexts,
    hints: Sequence[SourceHint],
) -> Iterator[HintMatch]:
    """Match ranks that wait in new_group, or that created groups of one name with other members."""
    waited = {call.group for state in ranks for call in state.pending}
    ambiguous = [
        same_name
        for same_name in groups_of_one_name(groups).values()
        if any(group.name in waited for group in same_name)
    ]
    for hint in hints:
        if not hint.creates or hint.call is None:
            continue
        if any(_creates_group(hint.call, call) for state in ranks for call in state.pending):
            yield HintMatch(hint, (), (), (), _CONFIDENCE_WAITING)
        elif ambiguous and any(
            _creates_group(hint.call, call) for state in ranks for call in state.recent
        ):
            text = (
                "ranks created groups of the same name with different members: "
                f"{members_text(ambiguous[0])}"
            )
            fact = Fact(text=text, origin="trace files")
            yield HintMatch(hint, (), (), (fact,), _CONFIDENCE_WAITING)


def _creates_group(line: SourceLine, call: RecordedCall) -> bool:
    return (
        call.group.startswith(NEW_GROUP)
        and call.site is not None
        and _is_same_line(line, call.site)
    )


def _match_files(
    root: Finding,
    ranks: Sequence[RankState],
    _: Mapping[str, ProcessGroupInfo],
    _source: SourceContexts,
    hints: Sequence[SourceHint],
) -> Iterator[HintMatch]:
    """Match a rank that could not read a file which another rank had not written yet."""
    if root.cause not in DEATHS:
        return
    lines = [_unreadable_at(state) for state in ranks if state.rank == root.subject.rank]
    for line in lines:
        for hint in hints:
            if line is not None and hint.kind == "file" and _is_same_line(hint.place, line):
                yield HintMatch(hint, (), (), (), 0.8)


_MATCHERS = (
    _match_partial_collectives,
    _match_stacks,
    _match_one_line,
    _match_groups,
    _match_files,
)
