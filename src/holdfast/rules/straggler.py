"""Who is slower than all others, step after step: judged from how long each rank waits in collectives. Pure.

The rank for which the others wait is the one that waits least itself. What it costs is how much less it waits than the
next one: by so much the job would be faster without it. Two that are equally slow hide each other. A rank is named only
where it costs much over the whole window and was the last in nearly every slice of it in which anybody waited, so that
one long stall, a checkpoint, or a machine with other work to do names nobody.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from statistics import fmean
from typing import TypeVar

from holdfast.facts.ranks import Life, RankState
from holdfast.facts.waiting import SLICES
from holdfast.findings import Fact, Level, Subject, Verdict, finding
from holdfast.rules.causes import by_name

QUESTION = "Is one of the ranks slower than the others?"
#: Part of the time that the others wait; NVIDIA's resiliency extension names ranks below 0.7 of the best pace.
COST = 0.3
#: In such a part of the slices in which somebody waited for some of it, and in how many of them at least.
NEARLY_ALWAYS, ENOUGH, QUIET = 0.8, SLICES // 2, 0.15
#: Slices that all ranks have measured, and calls that each has made in them.
MEASURED, CALLS = SLICES - 2, SLICES
#: Ranks that can be compared make as many calls, but for those at the edges of the window.
UNLIKE, EDGES = 0.1, 2
MOST_TOLD = 8

_Name = TypeVar("_Name", bound=Hashable)
_Table = Mapping[_Name, Sequence[float]]


def judge(ranks: Sequence[RankState], world_size: int) -> Verdict | None:
    """The verdict that names a straggler, or a host of them; None where there is none, or none can be seen."""
    waits = _waits(ranks, world_size)
    if not waits:
        return None
    hosts = {state.rank: state.host for state in ranks}
    slow = _slowest(waits)
    if slow is not None:
        rank, cost = slow
        on = f" on {hosts[rank]}" if hosts[rank] else ""
        message = f"rank {rank}{on} is slower than the others, which wait {cost:.0%} of the time for it"
        return _verdict(message, rank, hosts, waits)
    slow_host = _slowest({host: _least(waits, hosts, host) for host in {*hosts.values()} - {""}})
    if slow_host is None:
        return None
    host, cost = slow_host
    rank = min((rank for rank in waits if hosts[rank] == host), key=lambda rank: fmean(waits[rank]))
    message = f"the ranks on {host} are slower than all others, which wait {cost:.0%} of the time for them"
    return _verdict(message, rank, hosts, waits)


def _waits(ranks: Sequence[RankState], world_size: int) -> dict[int, list[float]]:
    """The waiting of every rank, slice by slice; nothing where the ranks cannot be compared."""
    if not ranks or len(ranks) != world_size or any(state.life is Life.DEAD or not state.waits for state in ranks):
        return {}
    common = set.intersection(*({each.number for each in state.waits} for state in ranks))
    calls = [sum(each.calls for each in state.waits if each.number in common) for state in ranks]
    if len(common) < MEASURED or min(calls) < CALLS or max(calls) - min(calls) > UNLIKE * max(calls) + EDGES:
        return {}
    return {state.rank: [each.waited for each in state.waits if each.number in common] for state in ranks}


def _slowest(table: _Table[_Name]) -> tuple[_Name, float] | None:
    """Who waits least, and how much less than the next; None where nobody stands out."""
    if len(table) < 2:
        return None
    first, second = sorted(table, key=lambda each: fmean(table[each]))[:2]
    cost = fmean(table[second]) - fmean(table[first])
    slices = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    busy = [row for row in slices if max(row.values()) >= QUIET]
    last = sum(row[first] <= min(row.values()) for row in busy)
    if cost < COST or len(busy) < ENOUGH or last < NEARLY_ALWAYS * len(busy):
        return None
    return first, cost


def _least(waits: _Table[int], hosts: Mapping[int, str], host: str) -> list[float]:
    """Slice by slice, the waiting of that rank of ``host`` which waited least."""
    return [min(row) for row in zip(*(waits[rank] for rank in waits if hosts[rank] == host), strict=True)]


def _verdict(message: str, rank: int, hosts: Mapping[int, str], waits: _Table[int]) -> Verdict:
    """``rank`` is the one of which the message tells, or the slowest of them; the ranks that wait least are told."""
    told = sorted(waits, key=lambda each: fmean(waits[each]))[:MOST_TOLD]
    evidence = tuple(
        Fact(text=f"rank {each} waited {fmean(waits[each]):.0%} of the time in collectives",
             origin=f"box of rank {each}", rank=each, host=hosts[each] or None) for each in told
    )  # fmt: skip
    subject = Subject(rank=rank, host=hosts[rank] or None)
    claim = finding(by_name("straggler"), message, level=Level.WARNING, subject=subject, evidence=evidence,
                    confidence=0.8)  # fmt: skip
    return Verdict(question=QUESTION, root=claim)
