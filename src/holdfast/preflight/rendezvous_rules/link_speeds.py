"""Links that are slow, or fail under load, from pairwise measurements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median_high

from holdfast.causes.network.mtu_black_hole import MTU_BLACK_HOLE
from holdfast.causes.network.network_fabric_fault import NETWORK_FABRIC_FAULT
from holdfast.causes.network.slow_link import SLOW_LINK
from holdfast.causes.remedies import name_devices
from holdfast.core.findings import Cause, Fact, Finding, Level, Remedy, Subject, make_finding
from holdfast.preflight.rendezvous import ConnectOutcome, LinkMeasurement, Observations
from holdfast.preflight.rendezvous_rules.blame import find_suspects

#: Shares of the usual speed below which a link is slow; with fewer links none is.
_SLOW, _VERY_SLOW = 0.5, 0.25
_MIN_LINKS = 3
_MAX_FACTS = 16
_MIB = 1 << 20


def judge(observed: Observations) -> Iterator[Finding]:
    """Yield links that failed during the measurement, then links far slower than most."""
    broken: dict[ConnectOutcome, list[LinkMeasurement]] = defaultdict(list)
    for link in observed.links:
        if link.outcome is not ConnectOutcome.OPEN:
            broken[link.outcome].append(link)
    for outcome, links in broken.items():
        if outcome is ConnectOutcome.STALLED:
            cause, what = MTU_BLACK_HOLE, "a message of 4 MiB stalls"
        else:
            cause = NETWORK_FABRIC_FAULT
            what = f"the measurement fails ({links[0].detail or outcome})"
        yield from _findings_by_suspect(links, observed, cause, what, Level.ERROR)
    slow = slow_pairs(observed)
    if slow:
        usual = _usual_speed(_speeds(observed)) / _MIB
        what = f"throughput is less than half of the usual {usual:.0f} MiB/s"
        links = [link for link in observed.links if (link.source, link.target) in slow]
        yield from _findings_by_suspect(links, observed, SLOW_LINK, what, Level.WARNING)


def slow_pairs(observed: Observations) -> frozenset[tuple[int, int]]:
    """Return the pairs below half of the median speed; none with too few links.

    One slow host of three slows most links, so less than a quarter of the hosts' best speed is slow
    too.
    """
    speeds = _speeds(observed)
    if len(speeds) < _MIN_LINKS:
        return frozenset()
    least = max(_SLOW * median_high(speeds.values()), _VERY_SLOW * _usual_speed(speeds))
    return frozenset(pair for pair, speed in speeds.items() if speed < least)


def _speeds(observed: Observations) -> dict[tuple[int, int], float]:
    """Return bytes/s in the slower direction of each pair."""
    return {
        (link.source, link.target): min(link.forth, link.back)
        for link in observed.links
        if link.forth and link.back
    }


def _usual_speed(speeds: dict[tuple[int, int], float]) -> float:
    """Return the median over hosts of the speed of their fastest link."""
    best: dict[int, float] = defaultdict(float)
    for pair, speed in speeds.items():
        for host in pair:
            best[host] = max(best[host], speed)
    return median_high(best.values())


def _findings_by_suspect(
    links: list[LinkMeasurement], observed: Observations, cause: Cause, what: str, level: Level
) -> Iterator[Finding]:
    """Yield one finding for each host or link that the links have in common."""
    hosts = [each.peer.host for each in observed.participants]
    by_pair = {(link.source, link.target): link for link in links}
    for suspect in find_suspects(by_pair, len(hosts)):
        own_links = [by_pair[pair] for pair in suspect.pairs]
        ends = hosts[own_links[0].source], hosts[own_links[0].target]
        if suspect.widespread:
            where = f"between {suspect.host_count:,} hosts ({len(own_links):,} links)"
            subject = Subject()
        elif suspect.host is None:
            where, subject = f"between {' and '.join(ends)}", Subject(link=" -> ".join(ends))
        else:
            name = hosts[suspect.host]
            where, subject = f"on {len(own_links)} links of {name}", Subject(host=name)
        yield make_finding(
            cause,
            f"{where}, {what}",
            level=level,
            confidence=0.7 if level is Level.WARNING else 0.9,
            subject=subject,
            evidence=tuple(_fact(link, hosts) for link in own_links[:_MAX_FACTS]),
            remedies=_remedies(cause, own_links[0], suspect.host, observed),
        )


def _remedies(
    cause: Cause, link: LinkMeasurement, suspect: int | None, observed: Observations
) -> tuple[Remedy, ...]:
    """Return the cause's remedies for the suspected host, else for the source of the link."""
    here = link.source if suspect is None else suspect
    other = link.target if here == link.source else link.source
    peers = [each.peer for each in observed.participants]
    published = peers[here].published
    return name_devices(
        cause.remedies,
        interface=published[0].interface if published else "",
        other_host=peers[other].name,
    )


def _fact(link: LinkMeasurement, hosts: list[str]) -> Fact:
    parts = []
    if link.round_trip_s is not None:
        parts.append(f"round trip {link.round_trip_s * 1e3:.2f} ms")
    for speed, direction in ((link.forth, "forth"), (link.back, "back")):
        if speed is not None:
            parts.append(f"{speed / _MIB:.1f} MiB/s {direction}")
    if link.detail:
        parts.append(link.detail)
    return Fact(
        text=f"{hosts[link.source]} -> {hosts[link.target]}: {', '.join(parts)}",
        origin="4 MiB over TCP",
        host=hosts[link.source],
    )
