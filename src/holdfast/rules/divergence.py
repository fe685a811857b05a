"""Where the ranks of one group parted: the first collective at which their calls are not the same call.

Ranks of a group must issue the same collectives in the same order. Compared are operation, dtype and, where it must
agree, size. A minority is blamed, a tie is called a tie: never whoever differs from the first rank.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.facts.ranks import Operation, RankState

#: Operations whose sizes may legally differ over ranks, or be unknown on some.
UNEVEN = frozenset({"all_gather", "gather", "scatter", "all_to_all", "all_to_all_single", "reduce_scatter", "barrier"})


#: Operations with a root, which all ranks must name alike (it stands in ``tag``).
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})

#: What of a call has to agree, for one kind of divergence.
Signature = Callable[[Operation, str], Hashable]

_Row = Mapping[int, Operation]
_Table = Mapping[int, _Row]


@dataclass(frozen=True)
class Divergence:
    """The ranks of ``group`` disagree at ``sequence``.

    ``kind`` is what differs first: ``operation``, ``dtype``, ``shape``, ``arguments`` (the reduction, the root) or
    ``line``. ``minority`` are the ranks that did something else than most (on a tie, those who differ from the lowest
    rank), ``usual`` and ``odd`` one call of either side. ``skipped`` is the call that the minority left out, where its
    own call is what always came after that one.
    """

    group: str
    sequence: int
    kind: str
    minority: tuple[int, ...]
    tie: bool
    usual: Operation
    odd: Operation
    skipped: Operation | None = None


def find(ranks: Sequence[RankState]) -> Divergence | None:
    """The earliest divergence in the remembered calls of the groups in which somebody waits; None where they agree."""
    return _earliest(ranks, ("operation", "dtype", "shape", "arguments"))


def find_line(ranks: Sequence[RankState]) -> Divergence | None:
    """The first call that some ranks made from another line, and that most made where the others used to make it too.

    Alone this is no fault: the two branches of a test may hold the same collective. It explains a mismatch or a missing
    call that shows later: one more, or one less, of a collective that everybody makes.
    """
    return _earliest(ranks, ("line",))


def _earliest(ranks: Sequence[RankState], kinds: Sequence[str]) -> Divergence | None:
    waited = {call.group for state in ranks for call in state.pending if call.certain}
    found = [in_group(group, calls, kinds) for group, calls in _calls(ranks).items() if group in waited]
    return min((item for item in found if item is not None), key=lambda item: item.usual.entered, default=None)


def _calls(ranks: Sequence[RankState]) -> dict[str, dict[int, dict[int, Operation]]]:
    """Group -> rank -> sequence -> call, of collectives."""
    table: dict[str, dict[int, dict[int, Operation]]] = defaultdict(lambda: defaultdict(dict))
    for state in ranks:
        for call in (*state.recent, *state.pending):
            if not call.is_point_to_point:
                table[call.group][state.rank][call.sequence] = call
    return table


def _signature(call: Operation, kind: str) -> Hashable:
    if kind == "line":
        return _key(call)
    if kind == "operation":
        return call.name
    if kind == "dtype":
        return call.dtype
    if kind == "arguments":
        return call.reduce, call.tag if call.name in ROOTED else None
    return () if call.name in UNEVEN else (call.elements, call.tensors)


def in_group(group: str, calls: _Table, kinds: Sequence[str], sign: Signature = _signature) -> Divergence | None:
    """The first call of one group (rank -> sequence -> call) on which its ranks disagree; None where they agree."""
    for sequence in sorted({number for mine in calls.values() for number in mine}):
        here = {rank: mine[sequence] for rank, mine in calls.items() if sequence in mine}
        if len(here) < 2:
            continue
        for kind in kinds:
            votes = Counter(sign(call, kind) for call in here.values())
            if len(votes) > 1:
                parted = _Vote(group, sequence, kind, sign).blame(here, votes, calls)
                if kind != "line":
                    return parted
                for side in (parted, _turned(parted, here)) if parted.tie else (parted,):
                    if _made_before(side, calls):
                        return replace(side, tie=False)
    return None


def _made_before(parted: Divergence, calls: _Table) -> bool:
    """True where the odd rank makes the usual call too, at another time: its own call is one too many, or one early."""
    mine = calls[parted.minority[0]].values()
    return any(_key(call) == _key(parted.usual) for call in mine)


def _turned(parted: Divergence, here: _Row) -> Divergence:
    """The same seen from the other side."""
    others = tuple(rank for rank in sorted(here) if rank not in parted.minority)
    return replace(parted, minority=others, usual=parted.odd, odd=parted.usual, skipped=None)


@dataclass(frozen=True)
class _Vote:
    """The place at which ranks disagree, and what is compared there."""

    group: str
    sequence: int
    kind: str
    sign: Signature

    def blame(self, here: _Row, votes: Counter[Hashable], calls: _Table) -> Divergence:
        (most, count), *rest = votes.most_common()
        habit = _Habit(calls, self.sequence)
        tie = rest[0][1] == count
        if tie:  # a side that goes on as it always did is the usual one; where both do, it stays a tie
            keeping = [call for rank, call in sorted(here.items()) if habit.keeps(calls[rank], call)]
            tie = len({self.sign(call, self.kind) for call in keeping}) != 1
            most = self.sign(keeping[0] if keeping else here[min(here)], self.kind)
        odd_ranks = tuple(rank for rank, call in sorted(here.items()) if self.sign(call, self.kind) != most)
        usual = next(call for call in here.values() if self.sign(call, self.kind) == most)
        odd = here[odd_ranks[0]]
        skipped = usual if habit.is_one_ahead(usual, odd) else None
        return Divergence(self.group, self.sequence, self.kind, odd_ranks, tie, usual, odd, skipped)


class _Habit:
    """Which call used to follow which, over all ranks, before they parted. A call is known by its name and line."""

    def __init__(self, calls: _Table, sequence: int) -> None:
        self._next: dict[Hashable, Counter[Hashable]] = defaultdict(Counter)
        for mine in calls.values():
            for number, call in mine.items():
                if number < sequence and number - 1 in mine:
                    self._next[_key(mine[number - 1])][_key(call)] += 1

    def keeps(self, mine: _Row, call: Operation) -> bool:
        """True where ``call`` has followed its predecessor before."""
        before = mine.get(call.sequence - 1)
        return before is not None and _key(call) in self._next[_key(before)]

    def is_one_ahead(self, usual: Operation, odd: Operation) -> bool:
        """True where ``odd`` is what always came after ``usual``: whoever makes it now has left ``usual`` out."""
        followers = self._next[_key(usual)]
        return bool(followers) and followers.most_common(1)[0][0] == _key(odd) != _key(usual)


def _key(call: Operation) -> Hashable:
    return call.name, call.site, call.caller
