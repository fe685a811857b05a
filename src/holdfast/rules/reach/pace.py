"""Which links are slow, or fail under load, measured pair by pair."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median_high

from holdfast.facts.reach import Fate, Gathered, Link
from holdfast.findings import Fact, Finding, Level, Subject, finding
from holdfast.rules.causes import by_name
from holdfast.rules.reach.blame import blame

#: A link is slow that carries less than this share of what is usual; with fewer links nothing is.
_SLOW, _VERY_SLOW = 0.5, 0.25
_FEWEST_LINKS = 3
_MOST_FACTS = 16
_FABRIC = "network-fabric-fault"
_MIB = 1 << 20


def judge(gathered: Gathered) -> Iterator[Finding]:
    """Links that broke while they were measured, then those that are far slower than most."""
    broken: dict[Fate, list[Link]] = defaultdict(list)
    for link in gathered.links:
        if link.fate is not Fate.OPEN:
            broken[link.fate].append(link)
    for fate, links in broken.items():
        what = f"measuring fails ({links[0].detail or fate})"
        cause, what = ("mtu-black-hole", "a message of 4 MiB stalls") if fate is Fate.STALLED else (_FABRIC, what)
        yield from _about(links, gathered, cause, what, Level.ERROR)
    lagging = slow(gathered)
    if lagging:
        what = f"less than half of the usual {_usual(_speeds(gathered)) / _MIB:.0f} MiB/s arrives"
        links = [each for each in gathered.links if (each.source, each.target) in lagging]
        yield from _about(links, gathered, "slow-link", what, Level.WARNING)


def slow(gathered: Gathered) -> frozenset[tuple[int, int]]:
    """The pairs that carry less than half of what the median pair does; none where there are too few to say.

    One slow host of three slows most of the links: less than a quarter of what hosts have at their best is slow, too.
    """
    speeds = _speeds(gathered)
    if len(speeds) < _FEWEST_LINKS:
        return frozenset()
    least = max(_SLOW * median_high(speeds.values()), _VERY_SLOW * _usual(speeds))
    return frozenset(pair for pair, speed in speeds.items() if speed < least)


def _speeds(gathered: Gathered) -> dict[tuple[int, int], float]:
    """Bytes a second in the slower direction."""
    return {
        (each.source, each.target): min(each.forth, each.back) for each in gathered.links if each.forth and each.back
    }


def _usual(speeds: dict[tuple[int, int], float]) -> float:
    """What a host's fastest link carries, the median over hosts."""
    best: dict[int, float] = defaultdict(float)
    for pair, speed in speeds.items():
        for host in pair:
            best[host] = max(best[host], speed)
    return median_high(best.values())


def _about(links: list[Link], gathered: Gathered, cause: str, what: str, level: Level) -> Iterator[Finding]:
    """A finding for each host or link that these have in common."""
    hosts = [each.copy.host for each in gathered.present]
    by_pair = {(each.source, each.target): each for each in links}
    for suspect in blame(by_pair, len(hosts)):
        mine = [by_pair[pair] for pair in suspect.pairs]
        ends = hosts[mine[0].source], hosts[mine[0].target]
        if suspect.many:
            where, subject = f"between {suspect.hosts:,} hosts ({len(mine):,} links)", Subject()
        elif suspect.host is None:
            where, subject = f"between {' and '.join(ends)}", Subject(link=" -> ".join(ends))
        else:
            name = hosts[suspect.host]
            where, subject = f"on {len(mine)} links of {name}", Subject(host=name)
        yield finding(
            by_name(cause), f"{where} {what}", level=level, confidence=0.7 if level is Level.WARNING else 0.9,
            subject=subject, evidence=tuple(_fact(each, hosts) for each in mine[:_MOST_FACTS]),
        )  # fmt: skip


def _fact(link: Link, hosts: list[str]) -> Fact:
    parts = [f"{hosts[link.source]} -> {hosts[link.target]}:"]
    if link.round_trip_s is not None:
        parts.append(f"round trip {link.round_trip_s * 1e3:.2f} ms,")
    for speed, word in ((link.forth, "forth"), (link.back, "back")):
        if speed is not None:
            parts.append(f"{speed / _MIB:.1f} MiB/s {word},")
    return Fact(
        text=" ".join((*parts, link.detail)).strip().rstrip(","), origin="4 MiB over TCP", host=hosts[link.source]
    )
