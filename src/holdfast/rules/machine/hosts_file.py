"""Traps in /etc/hosts: the own name at a loopback address, at an address that is gone, or at two."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from holdfast.facts.checks import Place, fact
from holdfast.facts.checks.hosts_file import PATH, HostsFile, said
from holdfast.facts.resolver import Line, is_address
from holdfast.findings import Finding, Level, Remedy, Subject, Unknown, finding
from holdfast.rules.causes import by_name


def judge(seen: HostsFile, place: Place) -> Iterator[Finding]:
    """Warnings, as a job of one host runs all the same; an error where the endpoint shows that there are others."""
    if isinstance(seen.lines, Unknown):
        return
    for line in (line for line in seen.lines if not is_address(line.address) or not line.names):
        yield _claim(
            seen, line, Level.NOTE, f"line {line.number} of {PATH} is no address with names: it is ignored", 0.9
        )
    own = [line for line in seen.about(seen.name) if is_address(line.address)]
    yield from _own(seen, own, place)
    yield from _endpoint(seen, place)
    at_home = [line for line in seen.lines if "localhost" in line.names]
    if not any(is_address(line.address) and ip_address(line.address).is_loopback for line in at_home):
        yield finding(
            by_name("hostname-resolution"),
            f"{PATH} has no line for localhost at 127.0.0.1: launchers that use "
            "the name on one host depend on DNS for it",
            level=Level.WARNING,
            evidence=seen.facts(),
            confidence=0.5,
        )


def _own(seen: HostsFile, own: list[Line], place: Place) -> Iterator[Finding]:
    """The resolver takes the first line that fits (of each version of IP); the others are never reached."""
    if not own:
        return
    first = own[0]
    others = seen.elsewhere
    if seen.name.partition(".")[0] != "localhost" and ip_address(first.address).is_loopback:
        fixed = f"gloo publishes {first.address} for this host and its peers on other hosts connect to themselves"
        level = Level.ERROR if others and not place.environ.get("GLOO_SOCKET_IFNAME") else Level.WARNING
        yield _claim(
            seen,
            first,
            level,
            f"line {first.number} of {PATH} puts this host's own name {seen.name} at {first.address}: {fixed}",
            0.9 if others else 0.7,
        )
    elif not ip_address(first.address).is_loopback and first.address not in seen.addresses:
        yield _claim(
            seen,
            first,
            Level.WARNING,
            f"line {first.number} of {PATH} puts {seen.name} at {first.address}, "
            "which is no address of this host: peers are sent elsewhere",
            0.8,
        )
    different = sorted({line.address for line in own if ip_address(line.address).version == 4})
    if len(different) > 1:
        yield _claim(
            seen,
            own[1],
            Level.NOTE,
            f"{PATH} has {seen.name} at {' and at '.join(different)}: which one counts "
            "depends on the order and on who asks",
            0.6,
        )


def _endpoint(seen: HostsFile, place: Place) -> Iterator[Finding]:
    if place.endpoint is None or place.endpoint[0] in {"localhost", seen.name}:
        return
    for line in seen.about(place.endpoint[0])[:1]:
        if is_address(line.address) and ip_address(line.address).is_loopback:
            yield _claim(
                seen,
                line,
                Level.WARNING,
                f"line {line.number} of {PATH} puts the endpoint {place.endpoint[0]} "
                f"at {line.address}: unless it is this host, it will wait for itself",
                0.7,
            )


def _claim(seen: HostsFile, line: Line, level: Level, message: str, confidence: float) -> Finding:
    cause = by_name("hostname-resolution")
    right = next((text for text in seen.addresses if "." in text and not text.startswith("127.")), "ADDRESS")
    change = Remedy(
        text=f"Put {seen.name} at the address by which other hosts reach this one, in line {line.number} of "
        f"{PATH} (here perhaps: `{right} {seen.name}`)."
    )
    gloo = Remedy(
        text="Where the file cannot be changed, name the interface.", command="export GLOO_SOCKET_IFNAME=eth0"
    )
    return finding(
        cause,
        message,
        level=level,
        subject=Subject(file=PATH, line=line.number),
        evidence=(fact(f"line {line.number}", said(line), f"{PATH}:{line.number}"), *seen.facts()[:1]),
        remedies=(change, gloo, *cause.remedies[:1]) if seen.name in line.names else cause.remedies,
        confidence=confidence,
    )
