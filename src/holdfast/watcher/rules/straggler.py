"""Finds ranks that are slower than all others, step after step, from wait times. Pure functions.

The rank that the others wait for waits least itself. Its cost is how much less it waits than the
next one: the job would be faster by that much without it. Outliers are ranks that wait much less
than the median of the ranks with GPUs of the same kind: a slower kind of GPU is no fault. They are
named only if their cost is high over the whole window and one of them was last in nearly every
slice in which ranks waited, so that one long stall, a checkpoint or a busy machine names no rank:
slices in which no collective began are one slice with the next. Two of few ranks that are equally
slow hide each other. The time of a rank's regular extra work, such as logging or saving, counts as
wait time: without it, the rank would wait as the others do. It is a note, not a slow rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Generic, TypeVar

from holdfast.causes.performance.straggler import STRAGGLER
from holdfast.causes.remedies import DRAIN
from holdfast.core.findings import Fact, Finding, Level, Subject, Verdict, make_finding
from holdfast.core.rank_sets import compress_ranks
from holdfast.core.rank_table import ProcessState, RankState, WaitSlice
from holdfast.watcher.rules.slow_reasons import reasons_of
from holdfast.watcher.wait_times import SLICES

QUESTION = "Is one of the ranks slower than the others?"
#: Minimum cost, a fraction of time; NVIDIA's resiliency extension names ranks below 0.75 of the
#: best pace.
MIN_COST = 0.3
#: The same where a robust deviation can be computed: from this number of comparable ranks.
MIN_COST_OF_MANY, MANY = 0.15, 8
#: Minimum distance from the median, in median absolute deviations scaled to a standard deviation.
MIN_DEVIATIONS, _SCALE = 6.0, 1.4826
#: Maximum fraction of outliers among comparable ranks: of more, nobody can tell which are normal.
MAX_OUTLIERS = 0.25
#: A slice counts if a rank waited at least this fraction of it, and so many slices must count.
MIN_WAITED, MIN_BUSY_SLICES = 0.15, SLICES // 2
#: Fraction of these slices in which an outlier must have waited least.
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


@dataclass(frozen=True)
class SlowSet(Generic[_Name]):
    """The entries that the others wait for, the slowest first, and the cost, a fraction of time."""

    names: tuple[_Name, ...]
    cost: float


def judge(
    ranks: Sequence[RankState], world_size: int, health: Sequence[Finding] = ()
) -> Verdict | None:
    """Return a verdict that names slow ranks or a host; None if there are none or data is missing.

    ``health`` are the findings about the hosts, which may explain why one is slow.
    """
    waits = _comparable_waits(ranks, world_size)
    if not waits:
        return None
    states = {state.rank: state for state in ranks}
    for rank, share in _extra_shares(ranks, health).items():
        waits[rank] = [wait + share for wait in waits[rank]]
    slow = find_slow(waits, {rank: states[rank].device for rank in waits})
    if slow is not None:
        hosts = _whole_hosts(slow.names, states)
        message = _of_host(hosts, slow.cost) if hosts else _of_ranks(slow, states)
        return _verdict(message, slow.names[0], slow.cost, states, waits, health)
    by_host = _ranks_by_host(states)
    slow_host = find_slow(
        {host: _least_waits(waits, on_host) for host, on_host in by_host.items()},
        {host: _kind(states, on_host) for host, on_host in by_host.items()},
    )
    if slow_host is None:
        return None
    host = slow_host.names[0]
    rank = min(by_host[host], key=lambda rank: fmean(waits[rank]))
    return _verdict(_of_host(host, slow_host.cost), rank, slow_host.cost, states, waits, health)


def find_extra_work(ranks: Sequence[RankState], health: Sequence[Finding] = ()) -> Finding | None:
    """Return a note about the rank for whose regular extra work the others wait most."""
    shares = _extra_shares(ranks, health)
    rank = max(shares, key=lambda rank: shares[rank], default=None)
    if rank is None or shares[rank] < MIN_COST_OF_MANY:
        return None
    state = next(state for state in ranks if state.rank == rank)
    every_s = state.extra_work.every_s
    when = "in phases" if state.extra_work.in_phases else f"every {every_s:.1f} s"
    message = (
        f"rank {rank} does extra work {when}, {shares[rank]:.0%} of the time, and the others wait "
        "meanwhile; do it less often, or in a thread"
    )
    fact = Fact(text=message, origin=f"trace of rank {rank}", rank=rank, host=state.host or None)
    return make_finding(
        STRAGGLER,
        message,
        level=Level.NOTE,
        subject=Subject(rank=rank, host=state.host or None),
        evidence=(fact,),
        confidence=0.8,
    )


def _extra_shares(ranks: Sequence[RankState], health: Sequence[Finding]) -> dict[int, float]:
    """Return how much more extra work than most each rank does, a fraction of the time.

    A rank that waits for its data loader or collects garbage is slow instead.
    """
    usual = median([state.extra_work.share for state in ranks] or [0.0])
    return {
        state.rank: state.extra_work.share - usual
        for state in ranks
        if state.extra_work.share > usual and not reasons_of(state, ranks, health)
    }


def find_slow(table: _WaitTable[_Name], kinds: Mapping[_Name, str]) -> SlowSet[_Name] | None:
    """Return the entries that wait much less than most of their kind, if the others wait for them.

    ``table`` holds the wait time of each entry, by slice; ``kinds`` the kind of GPU.
    """
    means = {name: fmean(row) for name, row in table.items()}
    mixed = len({*kinds.values()}) > 1
    outliers: list[_Name] = []
    for kind in {*kinds.values()}:
        alike = {name: mean for name, mean in means.items() if kinds[name] == kind}
        if len(alike) > 1 and (not mixed or len(alike) > 2):
            outliers += _outliers(alike)
    others = means.keys() - {*outliers}
    if not outliers or not others:
        return None
    outliers.sort(key=lambda name: means[name])
    cost = min(means[name] for name in others) - means[outliers[0]]
    busy = [at for at in range(len(table[outliers[0]])) if _is_busy(table, at)]
    least = {at: min(table[name][at] for name in others) for at in busy}
    named = [name for name in outliers if _is_last([name], table, least)]
    if (
        cost < _min_cost(len(table))
        or len(busy) < MIN_BUSY_SLICES
        or not named
        or not _is_last(outliers, table, least)
    ):
        return None
    return SlowSet(tuple(named), cost)


def _is_busy(table: _WaitTable[_Name], at: int) -> bool:
    return max(row[at] for row in table.values()) >= MIN_WAITED


def _is_last(names: Sequence[_Name], table: _WaitTable[_Name], least: Mapping[int, float]) -> bool:
    """Return whether one of ``names`` waited no more than the ``least`` of the others, usually."""
    last = sum(min(table[name][at] for name in names) <= value for at, value in least.items())
    return last >= MIN_LAST * len(least)


def _min_cost(count: int) -> float:
    return MIN_COST if count < MANY else MIN_COST_OF_MANY


def _outliers(means: Mapping[_Name, float]) -> list[_Name]:
    """Return the entries far below the median; of few entries, the lowest one."""
    middle = median(means.values())
    if len(means) < MANY:
        first, second = sorted(means, key=lambda name: means[name])[:2]
        return [first] if means[second] - means[first] >= MIN_COST else []
    deviation = _SCALE * median(abs(mean - middle) for mean in means.values())
    limit = middle - max(MIN_COST_OF_MANY, MIN_DEVIATIONS * deviation)
    below = [name for name, mean in means.items() if mean < limit]
    return below if len(below) <= MAX_OUTLIERS * len(means) else []


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
            merged.append({rank: sum(each[rank].waited for each in run) / len(run) for rank in row})
            begin = end
    return merged


def _ranks_by_host(states: Mapping[int, RankState]) -> dict[str, list[int]]:
    hosts: dict[str, list[int]] = defaultdict(list)
    for rank, state in states.items():
        if state.host:
            hosts[state.host].append(rank)
    return hosts


def _kind(states: Mapping[int, RankState], ranks: Sequence[int]) -> str:
    return " and ".join(sorted({states[rank].device for rank in ranks}))


def _whole_hosts(slow: Sequence[int], states: Mapping[int, RankState]) -> str:
    """Return the hosts of which all ranks, and only these, are slow; empty if there are none."""
    hosts = {states[rank].host for rank in slow}
    on_hosts = {rank for rank, state in states.items() if state.host in hosts}
    if "" in hosts or len(slow) <= len(hosts) or {*slow} != on_hosts:
        return ""
    return " and ".join(sorted(hosts))


def _least_waits(waits: _WaitTable[int], ranks: Sequence[int]) -> list[float]:
    """Return the least wait time among ``ranks``, per slice."""
    return [min(row) for row in zip(*(waits[rank] for rank in ranks), strict=True)]


def _of_host(host: str, cost: float) -> str:
    return (
        f"the ranks on {host} are slower than all others, which wait {cost:.0%} of the time for "
        "them"
    )


def _of_ranks(slow: SlowSet[int], states: Mapping[int, RankState]) -> str:
    rank, host = slow.names[0], states[slow.names[0]].host
    if len(slow.names) == 1:
        on = f" on {host}" if host else ""
        return (
            f"rank {rank}{on} is slower than the others, which wait {slow.cost:.0%} of the time "
            "for it"
        )
    return (
        f"ranks {compress_ranks(slow.names, limit=MAX_FACTS)} are slower than the others, which "
        f"wait {slow.cost:.0%} of the time for them; the slowest is rank {rank}"
        + (f" on {host}" if host else "")
    )


def _verdict(
    message: str,
    rank: int,
    cost: float,
    states: Mapping[int, RankState],
    waits: _WaitTable[int],
    health: Sequence[Finding],
) -> Verdict:
    host = states[rank].host
    reasons = reasons_of(states[rank], tuple(states.values()), health)
    cited = sorted(waits, key=lambda rank: fmean(waits[rank]))[:MAX_FACTS]
    evidence = tuple(
        Fact(
            text=f"rank {rank} waited {fmean(waits[rank]):.0%} of the time in collectives",
            origin=f"trace of rank {rank}",
            rank=rank,
            host=states[rank].host or None,
        )
        for rank in cited
    )
    unit = "GPU-hours" if any(state.device for state in states.values()) else "rank-hours"
    price = Fact(
        text=f"the wait costs {cost * (len(waits) - 1):.1f} {unit} per hour", origin="wait times"
    )
    finding = make_finding(
        STRAGGLER,
        "; ".join((message, *(fact.text for fact in reasons))),
        level=Level.WARNING,
        subject=Subject(rank=rank, host=host or None),
        evidence=(*evidence, *reasons, price),
        remedies=STRAGGLER.remedies if len(_ranks_by_host(states)) > 1 else _ON_ONE_HOST,
        confidence=0.8,
    )
    return Verdict(question=QUESTION, root=finding)
