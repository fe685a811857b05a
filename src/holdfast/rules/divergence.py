"""Where the ranks of one group parted: the first collective at which their calls are not the same call.

Ranks of a group must issue the same collectives in the same order. Compared are operation, dtype and, where it must
agree, size. A minority is blamed, a tie is called a tie: never whoever differs from the first rank.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.facts.ranks import Operation, Place, RankState

#: Operations whose sizes may legally differ over ranks, or be unknown on some.
UNEVEN = frozenset({"all_gather", "gather", "scatter", "all_to_all", "all_to_all_single", "reduce_scatter", "barrier"})


@dataclass(frozen=True)
class Divergence:
    """The ranks of ``group`` disagree at ``sequence``.

    ``kind`` is what differs first: ``operation``, ``dtype`` or ``shape``. ``minority`` are the ranks that did something
    else than most (all, sorted, on a tie), ``usual`` and ``odd`` one call of either side. ``skipped`` is the call that
    the minority left out, where its further calls are the others' shifted by one.
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
    """The earliest divergence in the calls that the ranks remember, over all groups; None where they agree."""
    found = [_in_group(group, calls) for group, calls in _calls(ranks).items()]
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
    if kind == "operation":
        return call.name
    if kind == "dtype":
        return call.dtype
    return () if call.name in UNEVEN else (call.elements, call.tensors)


def _in_group(group: str, calls: Mapping[int, Mapping[int, Operation]]) -> Divergence | None:
    for sequence in sorted({number for mine in calls.values() for number in mine}):
        here = {rank: mine[sequence] for rank, mine in calls.items() if sequence in mine}
        if len(here) < 2:  # noqa: PLR2004 - one rank cannot disagree
            continue
        for kind in ("operation", "dtype", "shape"):
            votes = Counter(_signature(call, kind) for call in here.values())
            if len(votes) > 1:
                return _blame(group, sequence, kind, here, votes, calls)
    return None


def _blame(
    group: str,
    sequence: int,
    kind: str,
    here: Mapping[int, Operation],
    votes: Counter[Hashable],
    calls: Mapping[int, Mapping[int, Operation]],
) -> Divergence:
    (most, count), *rest = votes.most_common()
    tie = rest[0][1] == count
    if tie:  # who is alone in never having made such a call before breaks it, below; else it stays a tie
        most = _signature(here[min(here)], kind)
    odd_ranks = tuple(rank for rank, call in sorted(here.items()) if _signature(call, kind) != most)
    usual = next(call for call in here.values() if _signature(call, kind) == most)
    odd = here[odd_ranks[0]]
    others = next(mine for rank, mine in calls.items() if rank not in odd_ranks)
    skipped = _skipped(sequence, others, calls[odd_ranks[0]])
    return Divergence(group, sequence, kind, odd_ranks, tie, usual, odd, skipped)


def _skipped(sequence: int, others: Mapping[int, Operation], mine: Mapping[int, Operation]) -> Operation | None:
    """The others' call that I left out: the last before ``sequence`` from which on my calls are theirs, one later.

    My call sites tell: where I am behind by one, my n-th call stands at the line of their (n+1)-th.
    """
    if sequence not in others or not _same_line(mine.get(sequence), others.get(sequence + 1)):
        return None
    first = sequence
    while first - 1 in mine and first in others and _same_line(mine[first - 1], others[first]):
        if _same_line(mine[first - 1], others.get(first - 1)):
            break  # the same line twice in a row: from here on both readings fit
        first -= 1
    return others[first]


def _same_line(mine: Operation | None, theirs: Operation | None) -> bool:
    if mine is None or theirs is None:
        return False
    return mine.site == theirs.site and mine.name == theirs.name


def last_common(ranks: Sequence[RankState], group: str) -> Mapping[int, Place | None]:
    """For each rank, where its newest call of ``group`` stands."""
    newest: dict[int, Operation] = {}
    for state in ranks:
        for call in (*state.recent, *state.pending):
            if call.group == group and call.sequence >= newest.get(state.rank, call).sequence:
                newest[state.rank] = call
    return {rank: call.site for rank, call in newest.items()}
