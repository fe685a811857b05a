"""Finds groups whose collectives are slow although all ranks have entered. Pure functions.

That is the network, not a rank. A group is compared with groups of the same number of ranks and
hosts that make collectives of the same sizes: one slow group among several means a slow link. It is
a link of one host if that host is in all slow groups and in no normal one. A job whose only group
spans all hosts has nothing to compare, and is not judged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from holdfast.causes.network.slow_link import SLOW_LINK
from holdfast.core.findings import Fact, Finding, Level, Subject, make_finding
from holdfast.core.rank_table import GroupTiming, ProcessGroupInfo
from holdfast.watcher.call_timings import Transfer, transfers_by_group

#: Collectives of a group that must have been compared.
MIN_CALLS = 6
#: Groups alike of which the median is normal, and the maximum fraction of slow ones.
MIN_GROUPS, MAX_SLOW = 4, 0.34
#: A slow group needs at least this multiple of the median, in most of its collectives.
MIN_RATIO, MIN_OFTEN = 1.5, 0.8
#: And differs by so many scaled median absolute deviations.
MIN_DEVIATIONS, _SCALE = 6.0, 1.4826
#: Minimum cost, a fraction of time.
MIN_COST = 0.05


@dataclass(frozen=True)
class GroupSpeed:
    """Transfers of a group, its hosts, and how many it makes per second."""

    name: str
    hosts: frozenset[str]
    per_s: float
    transfers: tuple[Transfer, ...]


@dataclass(frozen=True)
class _Comparison:
    speed: GroupSpeed
    ratio: float
    often: float
    cost: float


def judge(
    timings: Sequence[GroupTiming],
    groups: Mapping[str, ProcessGroupInfo],
    hosts: Mapping[int, str],
) -> Finding | None:
    """Return a finding about the slowest groups; None if none stands out."""
    alike: dict[tuple[int, int], list[GroupSpeed]] = defaultdict(list)
    for name, (per_s, transfers) in transfers_by_group(timings, groups).items():
        members = groups[name].ranks or ()
        on = frozenset(hosts.get(rank, "") for rank in members)
        if len(on) > 1 and "" not in on and len(transfers) >= MIN_CALLS:
            alike[len(members), len(on)].append(GroupSpeed(name, on, per_s, tuple(transfers)))
    found = (_judge_alike(speeds) for speeds in alike.values() if len(speeds) >= MIN_GROUPS)
    return next((finding for finding in found if finding is not None), None)


def _judge_alike(speeds: Sequence[GroupSpeed]) -> Finding | None:
    compared = _compare(speeds)
    if len(compared) < MIN_GROUPS:
        return None
    ratios = [each.ratio for each in compared]
    middle = median(ratios)
    deviation = _SCALE * median(abs(ratio - middle) for ratio in ratios)
    limit = max(MIN_RATIO, middle + MIN_DEVIATIONS * deviation)
    slow = [
        each
        for each in compared
        if each.ratio >= limit and each.often >= MIN_OFTEN and each.cost >= MIN_COST
    ]
    if not slow or len(slow) > MAX_SLOW * len(compared):
        return None
    slow.sort(key=lambda each: -each.ratio)
    return _finding(slow, [each for each in compared if each.ratio < MIN_RATIO], middle)


def _compare(speeds: Sequence[GroupSpeed]) -> list[_Comparison]:
    """Compare the transfers of each group with the median of all groups, by size."""
    by_size: dict[int, list[float]] = defaultdict(list)
    for speed in speeds:
        own: dict[int, list[float]] = defaultdict(list)
        for transfer in speed.transfers:
            own[transfer.elements].append(transfer.seconds)
        for elements, seconds in own.items():
            by_size[elements].append(median(seconds))
    usual = {
        elements: median(values)
        for elements, values in by_size.items()
        if len(values) >= MIN_GROUPS and median(values) > 0
    }
    compared = []
    for speed in speeds:
        transfers = [each for each in speed.transfers if each.elements in usual]
        if len(transfers) >= MIN_CALLS:
            ratios = [each.seconds / usual[each.elements] for each in transfers]
            lost = fmean(each.seconds - usual[each.elements] for each in transfers)
            often = sum(ratio >= MIN_RATIO for ratio in ratios) / len(ratios)
            compared.append(_Comparison(speed, median(ratios), often, lost * speed.per_s))
    return compared


def _finding(slow: Sequence[_Comparison], normal: Sequence[_Comparison], middle: float) -> Finding:
    suspects = frozenset.intersection(*(each.speed.hosts for each in slow))
    suspects -= frozenset().union(*(each.speed.hosts for each in normal))
    host = min(suspects) if len(suspects) == 1 else None
    names = ", ".join(repr(each.speed.name) for each in slow[:4])
    where = f"a link of {host} is slow" if host else f"a link of group {names} is slow"
    worst = slow[0]
    message = (
        f"{where}: with all ranks in, its collectives take {worst.ratio:.1f} times as long as "
        f"those of {len(normal)} groups alike, {worst.cost:.0%} of the time"
    )
    evidence = tuple(
        Fact(
            text=f"group {each.speed.name!r}: {len(each.speed.transfers)} collectives compared, "
            f"{each.ratio / middle:.1f} times the median of the groups alike",
            origin="trace files",
        )
        for each in slow
    )
    return make_finding(
        SLOW_LINK,
        message,
        level=Level.WARNING,
        subject=Subject(host=host, link=None if host else worst.speed.name),
        evidence=evidence,
        confidence=0.7,
    )
