"""Finds the time that collectives need after all ranks have entered, without comparing clocks.

The last rank to enter a collective is in it for the shortest time, which is what the transfer
takes; all others wait for the last one, too. Each node reports, for some collectives of each group,
the shortest time of its ranks; the leader takes the shortest of all nodes. Nodes choose the same
collectives by their sequence numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.core import trace_file
from holdfast.core.rank_table import CallTiming, GroupTiming, ProcessGroupInfo
from holdfast.watcher.trace_reader import TraceReading, select

#: By number of the operation: whether it completes on no rank before all ranks have entered.
IS_SYNCHRONIZING = np.zeros(1 << 16, np.bool_)
IS_SYNCHRONIZING[: len(trace_file.OPERATIONS)] = [
    name.startswith(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"))
    for name in trace_file.OPERATIONS
]
#: Collectives reported per group, and groups per node: about 2 KB in a summary.
MAX_CALLS, MAX_GROUPS = 12, 16


@dataclass(frozen=True)
class Transfer:
    """A collective after all ranks have entered: ``seconds`` until ``last``, the last, left it."""

    sequence: int
    elements: int
    seconds: float
    last: int


def measure_timings(
    observed: Iterable[tuple[int, TraceReading, np.ndarray[Any, Any]]], since: float
) -> tuple[GroupTiming, ...]:
    """Return the timings of the collectives that ranks of this node entered after ``since``.

    ``observed`` holds rank, trace and its records, oldest first.
    """
    members: dict[str, list[tuple[int, float, np.ndarray[Any, Any]]]] = defaultdict(list)
    for rank, trace, rows in observed:
        begun = (since * 1e9) - trace.header.offset_ns
        kept = select(
            rows,
            (rows["completed"] > 0)
            & (rows["outcome"] == 0)
            & ((rows["flags"] & trace_file.FLAG_NO_COMPLETION) == 0)
            & IS_SYNCHRONIZING[rows["operation"]]
            & (rows["entered"].astype(np.float64) >= begun),
        )
        for index in np.unique(kept["group"]):
            of_group = select(kept, kept["group"] == index)
            name = trace.read_notes().names.get(int(index))
            span_s = (int(of_group["entered"][-1]) - int(of_group["entered"][0])) / 1e9
            if name is not None and span_s > 0:
                members[name].append((rank, (len(of_group) - 1) / span_s, of_group))
    busiest = sorted(members, key=lambda name: -len(members[name][0][2]))[:MAX_GROUPS]
    return tuple(_fold(name, members[name]) for name in sorted(busiest))


def _fold(name: str, members: Sequence[tuple[int, float, np.ndarray[Any, Any]]]) -> GroupTiming:
    least: dict[int, CallTiming] = {}
    count: dict[int, int] = defaultdict(int)
    for rank, _, rows in members:
        for row in select(rows, rows["sequence"] % _stride(rows) == 0)[-MAX_CALLS:]:
            sequence = int(row["sequence"])
            in_it_us = max(int(row["completed"]) - int(row["entered"]), 0) // 1000
            count[sequence] += 1
            if sequence not in least or in_it_us < least[sequence].least_us:
                least[sequence] = CallTiming(sequence, int(row["elements"]), in_it_us, rank)
    calls = tuple(least[sequence] for sequence in sorted(least) if count[sequence] == len(members))
    rate = float(np.median([per_s for _, per_s, _ in members]))
    return GroupTiming(name, len(members), round(rate, 3), calls)


def _stride(rows: np.ndarray[Any, Any]) -> int:
    """Return the power of two of which at most MAX_CALLS multiples are in ``rows``."""
    return 1 << max(-(-len(rows) // MAX_CALLS) - 1, 0).bit_length()


def transfers_by_group(
    timings: Iterable[GroupTiming], groups: Mapping[str, ProcessGroupInfo]
) -> dict[str, tuple[float, list[Transfer]]]:
    """Combine the timings of all nodes: calls per second and transfers, by group.

    Only groups whose members are known and of which all nodes reported, and only collectives that
    all of them reported.
    """
    reports: dict[str, list[GroupTiming]] = defaultdict(list)
    for timing in timings:
        reports[timing.group].append(timing)
    found = {}
    for name, parts in reports.items():
        group = groups.get(name)
        if group is None or group.ranks is None:
            continue
        if sum(part.members for part in parts) != len(group.ranks):
            continue
        transfers = _combine([part.calls for part in parts])
        if transfers:
            found[name] = (max(part.per_s for part in parts), transfers)
    return found


def _combine(parts: Sequence[Sequence[CallTiming]]) -> list[Transfer]:
    tables = [{call.sequence: call for call in calls} for calls in parts]
    common = set.intersection(*({*table} for table in tables))
    least = (
        min((table[sequence] for table in tables), key=lambda call: call.least_us)
        for sequence in sorted(common)
    )
    return [
        Transfer(call.sequence, call.elements, call.least_us / 1e6, call.rank) for call in least
    ]
