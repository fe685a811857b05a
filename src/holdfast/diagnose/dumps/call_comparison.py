"""Compare the recorded calls of all ranks: find the first call that differs, and which rank is odd.

Every call of every dump is an index into one table, so ranks agree where their indices are equal;
signatures are compared only where they differ. Sizes may legally differ in gather, scatter,
all_to_all and the ``_v`` forms; for one side of an uneven collective (``_oop``), in either input or
output; and all shapes with equal element counts agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from math import prod

from holdfast.causes.sync.mismatched_shape import MISMATCHED_SHAPE
from holdfast.core.findings import Fact, Finding, Subject, make_finding
from holdfast.core.rank_table import RankState, RecordedCall
from holdfast.diagnose.dumps.dump_set import CallHistory, DumpTable
from holdfast.diagnose.dumps.reduced_dumps import CallSignature
from holdfast.watcher.rules import call_divergence
from holdfast.watcher.rules.call_divergence import CallDivergence

KINDS = ("operation", "dtype", "shape")
#: Calls before the divergence that are passed on, to recognize which call usually follows which.
CONTEXT_CALLS = 64

_ROOTED = re.compile(r"^_?(gather|scatter)$")
_VARIABLE = re.compile(r"all_?to_?all|barrier|_v$|coalesced$|^(send|recv)", re.IGNORECASE)
_SAME_SIZE = re.compile(r"^_?all_?reduce$")

_Sizes = tuple[tuple[int, ...], ...]


def find_divergence(table: DumpTable) -> CallDivergence | None:
    """Return the first call of any group at which its ranks made different calls."""
    comparison = _CallComparison(table.calls)
    found = [
        divergence
        for group, histories in table.histories.items()
        if (divergence := _divergence_in_group(table, group, histories, comparison))
    ]
    return min(found, key=lambda divergence: divergence.usual.entered, default=None)


def find_malformed_call(table: DumpTable) -> Finding | None:
    """Return a finding on a call that is wrong on all ranks: all_reduce with unequal sizes."""
    for call in table.calls:
        if (
            _SAME_SIZE.match(call.name)
            and call.output_sizes
            and _element_counts(call.input_sizes) != _element_counts(call.output_sizes)
        ):
            inputs, outputs = (
                [list(size) for size in sizes] for sizes in (call.input_sizes, call.output_sizes)
            )
            sizes = f"input {inputs}, output {outputs}"
            site = call.site
            return make_finding(
                MISMATCHED_SHAPE,
                f"input and output of {call.name} differ in size on every rank: {sizes}",
                subject=Subject(file=site.file, line=site.line) if site else Subject(),
                evidence=(Fact(text=sizes, origin="flight recorder"),),
                confidence=0.6,
            )
    return None


class _CallComparison:
    """Compares calls by their index in the table."""

    def __init__(self, calls: Sequence[CallSignature]) -> None:
        self.calls = calls
        self._keys: dict[int, dict[str, Hashable]] = {0: {}}

    def keys(self, index: int) -> dict[str, Hashable]:
        """Return the values to compare, by kind; none for a lost call."""
        keys = self._keys.get(index)
        if keys is None:
            call = self.calls[index]
            parts = tuple(self.keys(part) for part in call.parts)
            keys = self._keys[index] = {
                kind: (key_of(call), tuple(part[kind] for part in parts))
                for kind, key_of in _KEYS.items()
            }
        return keys

    def agree(self, one: int, other: int) -> bool:
        """Return whether two calls agree; a lost call agrees with any."""
        return one == other or not one or not other or self.keys(one) == self.keys(other)


def _name_key(call: CallSignature) -> Hashable:
    return call.name


def _dtype_key(call: CallSignature) -> Hashable:
    if _ROOTED.match(call.name) or _VARIABLE.search(call.name):
        return ()
    return call.input_dtypes, call.output_dtypes


def _shape_key(call: CallSignature) -> Hashable:
    if _ROOTED.match(call.name) or _VARIABLE.search(call.name):
        return ()
    if call.name.endswith("_oop"):
        return _element_counts(call.input_sizes if "reduce" in call.name else call.output_sizes)
    return _element_counts(call.input_sizes), _element_counts(call.output_sizes)


_KEYS: dict[str, Callable[[CallSignature], Hashable]] = {
    "operation": _name_key,
    "dtype": _dtype_key,
    "shape": _shape_key,
}


def _element_counts(sizes: _Sizes) -> tuple[int, ...]:
    """Return the elements per tensor: [4, 4] and [16] are equal on the network."""
    return tuple(prod(size) if size else 1 for size in sizes)


def _divergence_in_group(
    table: DumpTable, group: str, histories: Mapping[int, CallHistory], comparison: _CallComparison
) -> CallDivergence | None:
    first = min(_first_differences(histories, comparison), default=None)
    if first is None:
        return None
    states = {state.rank: state for state in table.ranks}
    keys: dict[int, dict[str, Hashable]] = {}
    calls: dict[int, dict[int, RecordedCall]] = {}
    for rank, history in histories.items():
        calls[rank] = {}
        for number, index, call in _calls_around(table, states[rank], group, history, first):
            calls[rank][number] = call
            keys[id(call)] = comparison.keys(index)
    return call_divergence.divergence_in_group(
        group, calls, KINDS, lambda call, kind: keys[id(call)][kind]
    )


def _first_differences(
    histories: Mapping[int, CallHistory], comparison: _CallComparison
) -> Iterator[int]:
    """Yield the first number at which each rank differs from the rank with the longest history."""
    longest = max(histories.values(), key=lambda history: len(history.calls))
    for history in histories.values():
        begin = max(longest.first, history.first)
        end = min(longest.first + len(longest.calls), history.first + len(history.calls))
        if begin >= end:  # the ring buffers have no call in common
            continue
        expected, calls = (
            each.calls[begin - each.first : end - each.first] for each in (longest, history)
        )
        if expected == calls:
            continue
        for number, (one, other) in enumerate(zip(expected, calls, strict=True), begin):
            if not comparison.agree(one, other):
                yield number
                break


def _calls_around(
    table: DumpTable, state: RankState, group: str, history: CallHistory, first: int
) -> Iterator[tuple[int, int, RecordedCall]]:
    """Yield number, index and call up to the divergence, as recorded calls of a live job."""
    timed = {call.sequence: call for call in (*state.recent, *state.pending) if call.group == group}
    end = history.first + len(history.calls)
    for number in range(max(history.first, first - CONTEXT_CALLS), min(end, first + 1)):
        index = history.calls[number - history.first]
        if index:
            call, known = table.calls[index], timed.get(number)
            shape = call.input_sizes[0] if call.input_sizes else ()
            recorded = RecordedCall(
                group=group,
                sequence=number,
                name=call.name,
                dtype=call.input_dtypes[0] if call.input_dtypes else "",
                elements=prod(shape) if call.input_sizes else 0,
                shape=shape,
                site=call.site,
                entered=known.entered if known else state.progress - end + number,
                completed=known.completed if known else 0.0,
                tensors=len(call.input_sizes),
            )
            yield number, index, recorded
