"""Finds where the ranks of one group diverged: the first collective at which their calls differ.

Ranks of a group must issue the same collectives in the same order. The rule compares operation,
dtype and, where it must agree, size. It names the minority; a tie is reported as a tie, and the
first rank has no special role.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.core.rank_table import RankState, RecordedCall

#: Operations whose sizes may differ between ranks, or be unknown on some.
UNEVEN = frozenset(
    {
        "all_gather",
        "gather",
        "scatter",
        "all_to_all",
        "all_to_all_single",
        "reduce_scatter",
        "barrier",
    }
)
#: Operations with a root, which must agree on all ranks (stored in ``tag``).
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})

#: Newest calls that are compared with earlier ones.
_MAX_COMPARED = 512

#: Returns what of a call must agree, for one kind of divergence.
Signature = Callable[[RecordedCall, str], Hashable]

_Row = Mapping[int, RecordedCall]
_Table = Mapping[int, _Row]


@dataclass(frozen=True)
class CallDivergence:
    """The ranks of ``group`` disagree at ``sequence``.

    ``kind`` is what differs first: ``operation``, ``dtype``, ``shape``, ``arguments`` (the
    reduction, the root), ``size`` (where it may differ in general) or ``line``. ``minority`` are
    the ranks that differ from most (on a tie, from the call that usually comes next, else from the
    lowest rank); ``usual`` and ``odd`` are one call of either side. ``skipped`` is the call that
    the minority skipped, if its own call always followed that one. ``early`` is how many calls
    usually precede that of the minority, the usual one first; 0 if that is not known. ``known``:
    ranks made both calls before, from these lines with these types. ``before`` is the call of the
    minority that precedes ``odd``.
    """

    group: str
    sequence: int
    kind: str
    minority: tuple[int, ...]
    tie: bool
    usual: RecordedCall
    odd: RecordedCall
    skipped: RecordedCall | None = None
    early: int = 0
    known: bool = False
    before: RecordedCall | None = None


def find_divergence(
    ranks: Sequence[RankState], *, sizes_differ: bool = False
) -> CallDivergence | None:
    """Return the earliest divergence in the recorded calls of groups in which a rank waits.

    ``sizes_differ``: a backend reported that, so sizes are compared even where they need not agree,
    and in groups in which calls failed.
    """
    kinds = ("operation", "dtype", "shape", "arguments")
    if not sizes_differ:
        return _earliest(ranks, kinds)
    return _earliest(ranks, (*kinds, "size"), with_failed=True)


def find_line_divergence(ranks: Sequence[RankState]) -> CallDivergence | None:
    """Return the first call that some ranks made from another line than usual for all ranks.

    That alone is no fault: two branches may contain the same collective. It explains a later
    mismatch or missing call: one collective too many or too few.
    """
    return _earliest(ranks, ("line",))


def first_own_call(
    ranks: Sequence[RankState], group: str
) -> tuple[RecordedCall, tuple[int, ...], tuple[int, ...]] | None:
    """Return the first call that only some of the ranks in this group made from that line.

    With the ranks that made it and the others; None if there is none.
    """
    calls = _calls(ranks).get(group, {})
    makers: dict[Hashable, set[int]] = defaultdict(set)
    for rank, own in calls.items():
        for call in own.values():
            makers[_key(call)].add(rank)
    ordered = sorted((number, rank) for rank, own in calls.items() for number in own)
    for number, rank in ordered:
        call = calls[rank][number]
        made = makers[_key(call)]
        if made != calls.keys():
            return call, tuple(sorted(made)), tuple(sorted(calls.keys() - made))
    return None


def _earliest(
    ranks: Sequence[RankState], kinds: Sequence[str], *, with_failed: bool = False
) -> CallDivergence | None:
    waited = {call.group for state in ranks for call in state.pending if call.certain}
    if with_failed:
        waited |= {call.group for state in ranks for call in state.recent if call.failed}
    found = [
        divergence_in_group(group, calls, kinds)
        for group, calls in _calls(ranks).items()
        if group in waited
    ]
    return min(
        (item for item in found if item is not None),
        key=lambda item: item.usual.entered,
        default=None,
    )


def _calls(ranks: Sequence[RankState]) -> dict[str, dict[int, dict[int, RecordedCall]]]:
    """Group -> rank -> sequence -> call, of collectives."""
    table: dict[str, dict[int, dict[int, RecordedCall]]] = defaultdict(lambda: defaultdict(dict))
    for state in ranks:
        for call in (*state.recent, *state.pending):
            if not call.is_point_to_point:
                table[call.group][state.rank][call.sequence] = call
    return table


def _signature(call: RecordedCall, kind: str) -> Hashable:
    if kind == "line":
        return _key(call)
    if kind == "operation":
        return call.name
    if kind == "dtype":
        return call.dtype
    if kind == "arguments":
        return call.reduce, call.tag if call.name in ROOTED else None
    if kind == "size":
        return () if call.name == "barrier" else call.elements
    return () if call.name in UNEVEN else (call.elements, call.tensors)


def divergence_in_group(
    group: str, calls: _Table, kinds: Sequence[str], sign: Signature = _signature
) -> CallDivergence | None:
    """Return the first divergence in one group (rank -> sequence -> call); None if ranks agree."""
    for sequence in sorted({number for own in calls.values() for number in own}):
        here = {rank: own[sequence] for rank, own in calls.items() if sequence in own}
        if len(here) < 2:
            continue
        for kind in kinds:
            votes = Counter(sign(call, kind) for call in here.values())
            if len(votes) > 1:
                found = _Vote(group, sequence, kind, sign).divergence(here, votes, calls)
                if kind != "line":
                    return found
                for side in (found, _other_side(found, here)) if found.tie else (found,):
                    if _is_known_call(side, calls):
                        return replace(side, tie=False)
    return None


def _is_known_call(found: CallDivergence, calls: _Table) -> bool:
    """Return whether the odd rank makes the usual call too, at another time."""
    own = calls[found.minority[0]].values()
    return any(_key(call) == _key(found.usual) for call in own)


def _other_side(found: CallDivergence, here: _Row) -> CallDivergence:
    """Return the same divergence with the sides exchanged."""
    others = tuple(rank for rank in sorted(here) if rank not in found.minority)
    return replace(found, minority=others, usual=found.odd, odd=found.usual, skipped=None)


@dataclass(frozen=True)
class _Vote:
    """The call at which ranks disagree, and what is compared."""

    group: str
    sequence: int
    kind: str
    sign: Signature

    def divergence(self, here: _Row, votes: Counter[Hashable], calls: _Table) -> CallDivergence:
        (most, count), *rest = votes.most_common()
        order = _CallOrder(calls, self.sequence)
        tie = rest[0][1] == count
        if tie:  # a side that continues its previous order is the usual one, unless both do
            usual_order = [
                call for rank, call in sorted(here.items()) if order.is_usual(calls[rank], call)
            ]
            tie = len({self.sign(call, self.kind) for call in usual_order}) != 1
            most = self.sign(usual_order[0] if usual_order else here[min(here)], self.kind)
        sequel = _usual_sequel(calls[min(here)], self.sequence)
        if tie:
            expected = {
                self.sign(call, self.kind) for call in here.values() if _key(call) in sequel[:1]
            }
            most = expected.pop() if len(expected) == 1 else most
        odd_ranks = tuple(
            rank for rank, call in sorted(here.items()) if self.sign(call, self.kind) != most
        )
        usual = next(call for call in here.values() if self.sign(call, self.kind) == most)
        odd = here[odd_ranks[0]]
        skipped = usual if order.is_successor(odd, usual) else None
        known = order.has_made(odd) and order.has_made(usual)
        is_early = _key(usual) in sequel[:1] and _key(odd) in sequel
        early = sequel.index(_key(odd)) if is_early else 0
        return CallDivergence(
            self.group,
            self.sequence,
            self.kind,
            odd_ranks,
            tie,
            usual,
            odd,
            skipped,
            early,
            known,
            calls[odd_ranks[0]].get(self.sequence - 1),
        )


class _CallOrder:
    """Which call followed which on any rank before the divergence."""

    def __init__(self, calls: _Table, sequence: int) -> None:
        self._next: dict[Hashable, Counter[Hashable]] = defaultdict(Counter)
        self._made: set[Hashable] = set()
        for own in calls.values():
            for number, call in own.items():
                if number < sequence:
                    self._made.add((_key(call), call.dtype))
                if number < sequence and number - 1 in own:
                    self._next[_key(own[number - 1])][_key(call)] += 1

    def has_made(self, call: RecordedCall) -> bool:
        """Return whether a rank made such a call before: at this line, with this dtype."""
        return (_key(call), call.dtype) in self._made

    def is_usual(self, own: _Row, call: RecordedCall) -> bool:
        """Return whether ``call`` has followed its predecessor before."""
        before = own.get(call.sequence - 1)
        return before is not None and _key(call) in self._next[_key(before)]

    def is_successor(self, odd: RecordedCall, usual: RecordedCall) -> bool:
        """Return whether ``odd`` usually follows ``usual``: its rank has then skipped ``usual``."""
        followers = self._next[_key(usual)]
        return bool(followers) and followers.most_common(1)[0][0] == _key(odd) != _key(usual)


def _usual_sequel(own: _Row, sequence: int) -> list[Hashable]:
    """Return the calls that followed the earlier ones most like those before ``sequence``.

    Most like: the most equal calls in a row. Empty if not always the same call followed.
    """
    begin = sequence
    while begin - 1 in own and begin > sequence - _MAX_COMPARED:
        begin -= 1
    keys = [_key(own[number]) for number in range(begin, sequence)]
    longest, ends = 0, list[int]()
    for end in range(1, len(keys)):
        equal = 0
        while equal < end and keys[end - 1 - equal] == keys[-1 - equal]:
            equal += 1
        if equal > longest:
            longest, ends = equal, []
        if equal == longest > 0:
            ends.append(end)
    return keys[ends[-1] :] if len({keys[end] for end in ends}) == 1 else []


def _key(call: RecordedCall) -> Hashable:
    return call.name, call.site, call.caller
