"""Where the calls that ranks' flight recorders remember are not the same calls: what has to agree, and who is odd.

Every call of every dump is a number into one table, so that two ranks agree where their numbers are equal; only where
they are not is it looked at what differs. What sizes may differ legally: those of gather, scatter, all_to_all and the
``_v`` forms; of a call that is one side of an uneven collective (``_oop``), one of input and output; and all shapes
with the same number of elements.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from math import prod

from holdfast.facts.dumps import DumpTable, History
from holdfast.facts.ranks import Operation, RankState
from holdfast.facts.reduced_dumps import Call
from holdfast.findings import Fact, Finding, Subject, finding
from holdfast.rules import divergence
from holdfast.rules.causes import by_name
from holdfast.rules.divergence import Divergence

KINDS = ("operation", "dtype", "shape")
#: Calls before the first disagreement that are shown to the judgement, which learns from them what used to follow what.
HABIT = 64

_ROOTED = re.compile(r"^_?(gather|scatter)$")
_FREE = re.compile(r"all_?to_?all|barrier|_v$|coalesced$|^(send|recv)", re.IGNORECASE)
_SAME_SIZE = re.compile(r"^_?all_?reduce$")

_Sizes = tuple[tuple[int, ...], ...]


def parted(table: DumpTable) -> Divergence | None:
    """The first call of any group at which its ranks did not make the same call; None where all agree."""
    agreement = _Agreement(table.calls)
    found = [item for group, mine in table.histories.items() if (item := _in_group(table, group, mine, agreement))]
    return min(found, key=lambda item: item.usual.entered, default=None)


def malformed(table: DumpTable) -> Finding | None:
    """A call that no rank can have made rightly: an all_reduce whose output is not as large as its input."""
    for call in table.calls:
        if (
            _SAME_SIZE.match(call.name)
            and _counts(call.input_sizes) != _counts(call.output_sizes)
            and call.output_sizes
        ):
            place = call.site
            sizes = f"{[list(size) for size in call.input_sizes]} in, {[list(size) for size in call.output_sizes]} out"
            subject = Subject(file=place.file if place else None, line=place.line if place else None)
            message = f"every rank's {call.name} has an output of another size than its input: {sizes}"
            facts = (Fact(text=sizes, origin="flight recorder"),)
            return finding(by_name("mismatched-shape"), message, subject=subject, evidence=facts, confidence=0.6)
    return None


class _Agreement:
    """What of a call has to agree, by its place in the table."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = calls
        self._keys: dict[int, dict[str, Hashable]] = {0: {}}

    def keys(self, place: int) -> dict[str, Hashable]:
        """The values to compare, by kind; a call of which nothing is known has none."""
        found = self._keys.get(place)
        if found is None:
            call = self.calls[place]
            parts = tuple(self.keys(part) for part in call.parts)
            made: dict[str, Callable[[Call], Hashable]] = {"operation": _operation, "dtype": _dtype, "shape": _shape}
            found = self._keys[place] = {
                kind: (make(call), tuple(part[kind] for part in parts)) for kind, make in made.items()
            }
        return found

    def same(self, one: int, other: int) -> bool:
        """True where the two calls agree, or one of them is not known."""
        return one == other or not one or not other or self.keys(one) == self.keys(other)


def _operation(call: Call) -> Hashable:
    return call.name


def _dtype(call: Call) -> Hashable:
    if _ROOTED.match(call.name) or _FREE.search(call.name):
        return ()
    return call.input_dtypes, call.output_dtypes


def _shape(call: Call) -> Hashable:
    if _ROOTED.match(call.name) or _FREE.search(call.name):
        return ()
    if call.name.endswith("_oop"):
        return _counts(call.input_sizes if "reduce" in call.name else call.output_sizes)
    return _counts(call.input_sizes), _counts(call.output_sizes)


def _counts(sizes: _Sizes) -> tuple[int, ...]:
    """Elements of each tensor: whether they lie as [4, 4] or [16] is the same to the network."""
    return tuple(prod(size) if size else 1 for size in sizes)


def _in_group(
    table: DumpTable, group: str, histories: Mapping[int, History], agreement: _Agreement
) -> Divergence | None:
    first = min((at for at in _disagreements(histories, agreement)), default=None)
    if first is None:
        return None
    known = {state.rank: state for state in table.ranks}
    rows = {rank: dict(_rows(table.calls, known[rank], group, history, first)) for rank, history in histories.items()}
    keys = {id(call): agreement.keys(place) for row in rows.values() for call, place in row.values()}
    calls = {rank: {number: call for number, (call, _) in row.items()} for rank, row in rows.items()}
    return divergence.in_group(group, calls, KINDS, lambda call, kind: keys[id(call)][kind])


def _disagreements(histories: Mapping[int, History], agreement: _Agreement) -> Iterator[int]:
    """The first number at which each rank disagrees with the rank whose history is longest."""
    longest = max(histories.values(), key=lambda history: len(history.calls))
    for history in histories.values():
        begin = max(longest.first, history.first)
        end = min(longest.first + len(longest.calls), history.first + len(history.calls))
        if begin >= end:  # the rings hold no call in common
            continue
        ours, theirs = (each.calls[begin - each.first : end - each.first] for each in (longest, history))
        if ours == theirs:
            continue
        pairs = enumerate(zip(ours, theirs, strict=True), begin)
        at = next((number for number, (one, other) in pairs if not agreement.same(one, other)), None)
        if at is not None:
            yield at


def _rows(
    calls: Sequence[Call], state: RankState, group: str, history: History, first: int
) -> Iterator[tuple[int, tuple[Operation, int]]]:
    """The calls around the first disagreement, as the judgement of a live job knows them."""
    timed = {call.sequence: call for call in (*state.recent, *state.pending) if call.group == group}
    for number in range(max(history.first, first - HABIT), min(history.first + len(history.calls), first + 1)):
        place = history.calls[number - history.first]
        if place:
            call, seen = calls[place], timed.get(number)
            shape = call.input_sizes[0] if call.input_sizes else ()
            yield number, (Operation(
                group=group, sequence=number, name=call.name, dtype=call.input_dtypes[0] if call.input_dtypes else "",
                elements=prod(shape) if call.input_sizes else 0, shape=shape, site=call.site,
                entered=seen.entered if seen else state.progress - history.first - len(history.calls) + number,
                completed=seen.completed if seen else 0.0, tensors=len(call.input_sizes),
            ), place)  # fmt: skip
