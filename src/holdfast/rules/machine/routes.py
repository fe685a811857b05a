"""Does a way lead to the rendezvous, and by the interface that is meant?"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from holdfast.facts.checks import Place, fact
from holdfast.facts.checks.interfaces import INNER
from holdfast.facts.checks.routes import Routes, Way
from holdfast.findings import Finding, Level, Remedy, Safety, Unknown, finding
from holdfast.rules.causes import by_name
from holdfast.rules.interface_names import VARIABLES, meant


def judge(seen: Routes, place: Place) -> Iterator[Finding]:
    """No way at all is an error; a loopback address, an inner interface, or one that is not meant a warning."""
    if isinstance(seen.ways, Unknown) or not seen.ways:
        return
    if all(way.refused for way in seen.ways):
        yield _no_way(seen, seen.ways[0])
        return
    way = next(way for way in seen.ways if not way.refused)
    if seen.ways[0].refused:
        yield finding(
            by_name("hostname-resolution"),
            f"{seen.endpoint} means {seen.ways[0].address} first, to which no way leads from here "
            f"({seen.ways[0].refused}): programs that do not go on to {way.address} fail",
            level=Level.WARNING,
            evidence=seen.facts(),
            confidence=0.6,
        )
    if way.local:
        yield from _loopback(seen, way)
    else:
        yield from _other_interface(seen, way, place)


def _no_way(seen: Routes, way: Way) -> Finding:
    return finding(
        by_name("master-unreachable"),
        f"no way leads from this host to {seen.endpoint} ({way.address}): the kernel says {way.refused}, and torch "
        "would try for half an hour",
        evidence=seen.facts(),
        remedies=(
            Remedy(text="Ask the kernel for the way.", command=f"ip route get {way.address}", safety=Safety.AUTOMATIC),
            *by_name("master-unreachable").remedies,
        ),
        confidence=0.95,
    )


def _loopback(seen: Routes, way: Way) -> Iterator[Finding]:
    if ip_address(way.address).is_loopback and seen.endpoint not in {"localhost", way.address}:
        yield finding(
            by_name("hostname-resolution"),
            f"{seen.endpoint} means {way.address} here, which is every host itself: on a host where it does so wrongly "
            "nobody is reached",
            level=Level.WARNING,
            evidence=seen.facts(),
            confidence=0.6,
        )


def _other_interface(seen: Routes, way: Way, place: Place) -> Iterator[Finding]:
    cause = by_name("network-interface-wrong")
    if way.interface is None:
        return
    if INNER.match(way.interface):
        yield finding(
            cause,
            f"the way to {seen.endpoint} leaves through {way.interface}, an interface of containers, virtual machines "
            "or a VPN: other hosts may not be there, or slow",
            level=Level.WARNING,
            evidence=seen.facts(),
            confidence=0.5,
        )
    for variable in (variable for variable in VARIABLES if place.environ.get(variable)):
        value = place.environ[variable]
        if not meant(variable, value, [way.interface]):
            yield finding(
                cause,
                f"{variable}={value}, and the way to {seen.endpoint} leaves through {way.interface}: the ranks will "
                "talk over another network than that of the rendezvous, which the other hosts may not have",
                level=Level.WARNING,
                evidence=(*seen.facts(), fact(variable, value, "the environment")),
                confidence=0.4,
            )
