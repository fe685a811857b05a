"""Are the interfaces sound, and are those there that the variables name?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from ipaddress import ip_interface
from itertools import chain

from holdfast.facts.checks import Place, fact
from holdfast.facts.checks.interfaces import Interface, Interfaces
from holdfast.findings import Finding, Level, Remedy, Safety, Unknown, finding
from holdfast.rules.causes import by_name
from holdfast.rules.interface_names import VARIABLES, meant

#: IPv6 needs packets of at least this size on every link (RFC 8200, section 5); smaller ones come from tunnels.
_LEAST_MTU = 1280
#: Errors per packet from which a link is called bad, and how many there have to be.
_ERROR_RATE, _LEAST_ERRORS = 1e-5, 100
#: Drops are common (unknown protocols, full rings at the start); this many are not.
_DROP_RATE, _LEAST_DROPS = 0.01, 10_000


def judge(seen: Interfaces, place: Place) -> Iterator[Finding]:
    """Named and not there; up without a carrier; losses; half duplex; the same network twice; IPv6 taken by another."""
    if isinstance(seen.interfaces, Unknown):
        return
    yield from _named(seen, seen.interfaces, place)
    outer = [one for one in seen.interfaces if one.up is True and not one.loopback and not one.inner]
    yield from chain.from_iterable(_faults(one) for one in outer)
    yield from _same_network(outer)
    yield from _packet_sizes(outer)
    if not any(one.addresses for one in outer):
        yield _claim(
            "network-interface-wrong",
            Level.NOTE,
            "this host has no address but its loopback: jobs of one host run here, and no others",
            list(seen.interfaces),
            0.9,
        )
    elif place.environ.get("NCCL_SOCKET_FAMILY") == "AF_INET6" and not any(one.wide(6) for one in outer):
        yield _claim(
            "network-interface-wrong",
            Level.ERROR,
            "NCCL_SOCKET_FAMILY asks for IPv6, and no interface has "
            "an IPv6 address that others can reach: NCCL finds no interface",
            outer,
            0.9,
        )


def _named(seen: Interfaces, interfaces: Sequence[Interface], place: Place) -> Iterator[Finding]:
    names = [one.name for one in interfaces]
    for variable in (variable for variable in VARIABLES if place.environ.get(variable)):
        value = place.environ[variable]
        chosen = meant(variable, value, names)
        if not chosen:
            yield finding(
                by_name("network-interface-wrong"),
                f"{variable}={value} leaves none of this host's interfaces ({', '.join(names)}): no connection is made",
                evidence=(fact(variable, value, "the environment"), *seen.facts()),
                confidence=0.95,
            )
        elif not any(one.addresses and one.up is not False for one in interfaces if one.name in chosen):
            yield _claim(
                "network-interface-wrong",
                Level.ERROR,
                f"{variable}={value} means {', '.join(chosen)}, which is down or has no address",
                [one for one in interfaces if one.name in chosen],
                0.9,
            )


def _faults(one: Interface) -> Iterator[Finding]:
    if one.carrier is False and one.addresses:
        yield _claim(
            "network-fabric-fault",
            Level.WARNING,
            f"{one.name} has an address and no carrier: its cable or port is down, and what is sent there is lost",
            [one],
            0.9,
        )
    if one.errors >= _LEAST_ERRORS and one.errors > _ERROR_RATE * one.packets:
        yield _claim(
            "network-fabric-fault",
            Level.WARNING,
            f"{one.name} counts {one.errors:,} errors in {one.packets:,} packets: a cable, a port or a driver is bad",
            [one],
            0.6,
        )
    if one.dropped >= _LEAST_DROPS and one.dropped > _DROP_RATE * one.packets:
        yield _claim(
            "network-fabric-fault",
            Level.NOTE,
            f"{one.name} has dropped {one.dropped:,} of {one.packets:,} packets since it came up",
            [one],
            0.4,
        )
    if one.duplex == "half":
        yield _claim(
            "network-fabric-fault",
            Level.WARNING,
            f"{one.name} runs half duplex: the two ends of its link "
            "did not agree, and it will be slow and lose packets",
            [one],
            0.8,
        )
    if one.duplicates:
        yield _claim(
            "network-fabric-fault",
            Level.WARNING,
            f"{one.name} may not use {', '.join(one.duplicates)}: another host has that IPv6 address",
            [one],
            0.9,
        )
    if isinstance(one.mtu, int) and one.mtu < _LEAST_MTU:
        yield _claim(
            "network-fabric-fault",
            Level.WARNING,
            f"{one.name} takes packets of {one.mtu} bytes at most, "
            f"and IPv6 needs {_LEAST_MTU}: large messages may vanish",
            [one],
            0.5,
        )


def _same_network(outer: Sequence[Interface]) -> Iterator[Finding]:
    """Two interfaces of one host in one network: either answers for the other, and replies take one of the two."""
    at: dict[str, list[Interface]] = defaultdict(list)
    for one in outer:
        for network in {str(ip_interface(text).network) for text in (*one.wide(4), *one.wide(6))}:
            at[network].append(one)
    for network, several in at.items():
        if len(several) > 1 and "/32" not in network and "/128" not in network:
            yield _claim(
                "network-interface-wrong",
                Level.NOTE,
                f"{' and '.join(one.name for one in several)} are both "
                f"in {network}: all traffic leaves by one of them unless routes by source are set",
                several,
                0.6,
            )


def _packet_sizes(outer: Sequence[Interface]) -> Iterator[Finding]:
    sizes = {one.mtu for one in outer if isinstance(one.mtu, int) and one.addresses}
    if len(sizes) > 1:
        yield _claim(
            "network-fabric-fault",
            Level.NOTE,
            "interfaces differ in the size of packets "
            f"({', '.join(f'{one.name} {one.mtu}' for one in outer if one.addresses)}): all hosts need the "
            "same on the network of the job",
            outer,
            0.5,
        )


def _claim(cause: str, level: Level, message: str, about: Sequence[Interface], confidence: float) -> Finding:
    look = (
        Remedy(text="Look at the interface.", command=f"ip -s -d link show {about[0].name}", safety=Safety.AUTOMATIC)
        if len(about) == 1
        else None
    )
    return finding(
        by_name(cause),
        message,
        level=level,
        evidence=Interfaces(interfaces=tuple(about)).facts(),
        remedies=(look, *by_name(cause).remedies) if look else (),
        confidence=confidence,
    )
