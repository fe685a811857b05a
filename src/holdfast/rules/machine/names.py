"""Do the own name and the endpoint's mean what the other hosts need them to mean?"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from holdfast.facts.checks import Place
from holdfast.facts.checks.names import Names
from holdfast.facts.resolver import Answer
from holdfast.findings import Finding, Level, Remedy, Safety, finding
from holdfast.rules.causes import by_name

#: A resolver that needs longer than this asks a server that is gone first.
_SLOW_S = 1.0
_LOCAL_ADDR = Remedy(
    text="Until then let the c10d rendezvous publish an address, and let gloo take its interface by name.",
    command="export GLOO_SOCKET_IFNAME=eth0; holdfast run --local-addr 10.0.0.2 --rdzv-endpoint HOST_A:29500 train.py",
    safety=Safety.DISRUPTIVE,
)


def judge(seen: Names, place: Place) -> Iterator[Finding]:
    """The endpoint first, as nothing begins without it; then what peers are told of this host."""
    if seen.endpoint is not None:
        yield from _endpoint(seen, seen.endpoint)
    yield from _own(seen, place)
    yield from _published(seen)
    slow = max(
        (seen.own, seen.published, *((seen.endpoint,) if seen.endpoint else ())), key=lambda each: each.elapsed_s
    )
    if slow.addresses and slow.elapsed_s > _SLOW_S:
        yield _claim(
            seen,
            Level.WARNING,
            f"the resolver took {slow.elapsed_s:.1f} s for {slow.asked}: a name server "
            "that it asks first does not answer, and every start waits for it",
            0.8,
        )


def _endpoint(seen: Names, answer: Answer) -> Iterator[Finding]:
    if not answer.addresses:
        yield _claim(
            seen,
            Level.ERROR,
            f"the endpoint's name {answer.asked} means nothing here ({answer.trouble}): "
            "this host will not find the rendezvous",
            0.95 if answer.is_known_absent else 0.8,
        )
    elif all(ip_address(text).version == 6 for text in answer.addresses) and not _wide6(seen):
        yield _claim(
            seen,
            Level.ERROR,
            f"{answer.asked} has IPv6 addresses alone, and this host has none by which others are reached",
            0.9,
        )


def _own(seen: Names, place: Place) -> Iterator[Finding]:
    """What gloo publishes, unless it is told an interface. A line of /etc/hosts is judged by its own check."""
    own, gloo = seen.own, place.environ.get("GLOO_SOCKET_IFNAME")
    if gloo or seen.in_file:
        return
    foreign = [text for text in own.addresses if text not in seen.addresses and not ip_address(text).is_loopback]
    if not own.addresses:
        yield _claim(
            seen,
            Level.WARNING,
            f"this host's own name {own.asked} means nothing to it ({own.trouble}): gloo "
            "publishes its loopback address instead, and peers on other hosts cannot connect",
            0.8,
        )
    elif all(ip_address(text).is_loopback for text in own.addresses):
        yield _claim(
            seen,
            Level.WARNING,
            f"this host's own name {own.asked} means {own.addresses[0]}: gloo publishes "
            "it, and peers on other hosts connect to themselves",
            0.8,
        )
    elif foreign and len(foreign) == len(own.addresses):
        yield _claim(
            seen,
            Level.WARNING,
            f"this host's own name {own.asked} means {foreign[0]}, which is no address of "
            "this host: peers are sent elsewhere",
            0.7,
        )


def _published(seen: Names) -> Iterator[Finding]:
    """What the c10d rendezvous publishes for rank 0's host."""
    name = seen.published.asked
    if name.partition(".")[0] in {"localhost", "ip6-localhost"}:
        yield _claim(
            seen,
            Level.WARNING,
            f"this host calls itself {name}, which torch's c10d rendezvous publishes: "
            "where it is the first host, each of the others then waits for itself",
            0.8,
        )
    elif not seen.published.addresses and name != seen.own.asked:
        yield _claim(
            seen,
            Level.WARNING,
            f"this host calls itself {name}, which means nothing here: the c10d "
            "rendezvous publishes it, and other hosts may not resolve it either",
            0.6,
        )


def _wide6(seen: Names) -> list[str]:
    return [text for text in seen.addresses if ":" in text and not text.startswith("fe80:") and text != "::1"]


def _claim(seen: Names, level: Level, message: str, confidence: float) -> Finding:
    cause = by_name("hostname-resolution")
    return finding(
        cause,
        message,
        level=level,
        evidence=seen.facts(),
        confidence=confidence,
        remedies=(*cause.remedies[:1], _LOCAL_ADDR),
    )
