"""Finds a rank that is slower than all others, step after step, from wait times. Pure functions.

The rank that the others wait for waits least itself. Its cost is how much less it waits than the
next one: the job would be faster by that much without it. Two equally slow ranks hide each other. A
rank is named only if its cost is high over the whole window and it was last in nearly every slice
in which ranks waited, so that one long stall, a checkpoint or a busy machine names no rank: slices
in which no collective began are one slice with the next.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from statistics import fmean
from typing import TypeVar

from holdfast.causes.performance.straggler import STRAGGLER
from holdfast.causes.remedies import DRAIN
from holdfast.core.findings import Fact, Level, Subject, Verdict, make_finding
from holdfast.core.rank_table import ProcessState, RankState, WaitSlice
from holdfast.watcher.wait_times import SLICES

QUESTION = "Is one of the ranks slower than the others?"
#: Minimum cost, a fraction of time; NVIDIA's resiliency extension names ranks below 0.7 of the best
#: pace.
MIN_COST = 0.3
#: A slice counts if a rank waited at least this fraction of it, and so many slices must count.
MIN_WAITED, MIN_BUSY_SLICES = 0.15, SLICES // 2
#: Fraction of these slices in which the rank must have waited least.
MIN_LAST = 0.8
#: Slices that all ranks measured, and calls that each made in them.
MIN_SLICES, MIN_CALLS = SLICES - 2, SLICES
#: Maximum difference between call counts of comparable ranks: a fraction, and calls at the edges.
MAX_CALL_SPREAD, EDGE_CALLS = 0.1, 2
MAX_FACTS = 8
#: If all ranks run on one host, it is not slower than others.
_ON_ONE_HOST = tuple(remedy for remedy in STRAGGLER.remedies if remedy != DRAIN)

_Name = TypeVar("_Name", bound=Hashable)
_WaitTable = Mapping[_Name, Sequence[float]]


def judge(ranks: Sequence[RankState], world_size: int) -> Verdict | None:
    """Return a verdict that names a slow rank or host; None if there is none or data is missing."""
    waits = _comparable_waits(ranks, world_size)
    if not waits:
        return None
    hosts = {state.rank: state.host for state in ranks}
    slow = _slowest(waits)
    if slow is not None:
        rank, cost = slow
        on = f" on {hosts[rank]}" if hosts[rank] else ""
        message = (
            f"rank {rank}{on} is slower than the others, which wait {cost:.0%} of the time for it"
        )
        return _verdict(message, rank, hosts, waits)
    by_host = {host: _least_waits(waits, hosts, host) for host in {*hosts.values()} - {""}}
    slow_host = _slowest(by_host)
    if slow_host is None:
        return None
    host, cost = slow_host
    rank = min((rank for rank in waits if hosts[rank] == host), key=lambda rank: fmean(waits[rank]))
    message = (
        f"the ranks on {host} are slower than all others, which wait {cost:.0%} of the time for "
        "them"
    )
    return _verdict(message, rank, hosts, waits)


def _comparable_waits(ranks: Sequence[RankState], world_size: int) -> dict[int, list[float]]:
    """Return the wait time of each rank per common slice; empty if ranks cannot be compared."""
    if (
        not ranks
        or len(ranks) != world_size
        or any(state.life is ProcessState.DEAD or not state.waits for state in ranks)
    ):
        return {}
    table = [(state, {slice_.number: slice_ for slice_ in state.waits}) for state in ranks]
    common = set.intersection(*({*slices} for _, slices in table))
    calls = [
        sum(slice_.calls for slice_ in state.waits if slice_.number in common) for state in ranks
    ]
    if (
        len(common) < MIN_SLICES
        or min(calls) < MIN_CALLS
        or max(calls) - min(calls) > MAX_CALL_SPREAD * max(calls) + EDGE_CALLS
    ):
        return {}
    rows = _merge_silent(
        [{state.rank: slices[number] for state, slices in table} for number in sorted(common)]
    )
    return {state.rank: [row[state.rank] for row in rows] for state in ranks}


def _merge_silent(rows: Sequence[Mapping[int, WaitSlice]]) -> list[dict[int, float]]:
    """Return the wait times per slice, as the mean over a run of slices without a new call."""
    merged: list[dict[int, float]] = []
    begin = 0
    for end, row in enumerate(rows, 1):
        if end == len(rows) or max(slice_.calls for slice_ in row.values()) > 0:
            run = rows[begin:end]
            merged.append({rank: fmean(each[rank].waited for each in run) for rank in row})
            begin = end
    return merged


def _slowest(table: _WaitTable[_Name]) -> tuple[_Name, float] | None:
    """Return the entry that waits least, and its cost; None if the difference is too small."""
    if len(table) < 2:
        return None
    first, second = sorted(table, key=lambda name: fmean(table[name]))[:2]
    cost = fmean(table[second]) - fmean(table[first])
    slices = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    busy = [row for row in slices if max(row.values()) >= MIN_WAITED]
    last = sum(row[first] <= min(row.values()) for row in busy)
    if cost < MIN_COST or len(busy) < MIN_BUSY_SLICES or last < MIN_LAST * len(busy):
        return None
    return first, cost


def _least_waits(waits: _WaitTable[int], hosts: Mapping[int, str], host: str) -> list[float]:
    """Return the least wait time among the ranks of ``host``, per slice."""
    on_host = (waits[rank] for rank in waits if hosts[rank] == host)
    return [min(row) for row in zip(*on_host, strict=True)]


def _verdict(message: str, rank: int, hosts: Mapping[int, str], waits: _WaitTable[int]) -> Verdict:
    cited = sorted(waits, key=lambda rank: fmean(waits[rank]))[:MAX_FACTS]
    evidence = tuple(
        Fact(
            text=f"rank {rank} waited {fmean(waits[rank]):.0%} of the time in collectives",
            origin=f"trace of rank {rank}",
            rank=rank,
            host=hosts[rank] or None,
        )
        for rank in cited
    )
    finding = make_finding(
        STRAGGLER,
        message,
        level=Level.WARNING,
        subject=Subject(rank=rank, host=hosts[rank] or None),
        evidence=evidence,
        remedies=STRAGGLER.remedies if len({*hosts.values()}) > 1 else _ON_ONE_HOST,
        confidence=0.8,
    )
    return Verdict(question=QUESTION, root=finding)
