"""Why a copy did not get to the endpoint, from what it met on its way alone."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.reach import Approach, Attempt, Copy, Fate, NotUnderstood
from holdfast.facts.reach.addresses import is_loopback
from holdfast.findings import Fact, Finding, Subject, Unknown, finding
from holdfast.rules.causes import by_name

#: Fate of the attempt at the endpoint -> cause, how sure, and the sentence.
_SENTENCES: dict[Fate, tuple[str, float, str]] = {
    Fate.NO_ROUTE: ("master-unreachable", 0.98, "{here} has no route to {there}: no network of this host leads there"),
    Fate.NOBODY: ("master-unreachable", 0.95, ("no host answers for {there}, asked from {here} ({source}): the address "
                  "is nobody's, or its host is down")),
    Fate.REJECTED: ("firewall-blocked-ports", 0.97, "a firewall rejects connections from {here} to {there}{by}"),
    Fate.REFUSED: ("master-unreachable", 0.8, ("nobody listened at {there} for {wait}, although the host answers: node "
                   "0 did not start there, or a firewall resets connections from {here}")),
    Fate.FOREIGN: ("port-in-use", 0.9, "another service has {there}: {detail}"),
    Fate.STRANGER: ("port-in-use", 0.9, "another `holdfast check` has {there}: {detail}"),
    Fate.FAILED: ("master-unreachable", 0.7, "{here} cannot connect to {there}: {detail}"),
    Fate.OPEN: ("network-fabric-fault", 0.6, "{here} reached {there} and lost it again: {why}"),
}  # fmt: skip


def judge(copy: Copy, approach: Approach, why: Unknown, wait_s: float) -> Iterator[Finding]:
    """The one reason; where packets only vanish, a host that is down is the other."""
    subject = Subject(host=copy.host)
    evidence = facts(copy, approach)
    if isinstance(why, NotUnderstood):
        led = f"whoever leads at {copy.endpoint}"
        message = f"{copy.label} and {led} were started with different commands, such as `--connect` on one alone"
        if why.version != copy.version:
            message = f"{copy.label} has holdfast {copy.version}, and {led} has {why.version}: they do not understand "
            message += "each other"
        yield finding(
            by_name("launch-arguments-differ"), message,
            subject=subject, evidence=(*evidence, Fact(text=why.why, origin="the meeting", host=copy.host)),
            confidence=0.95,
        )  # fmt: skip
        return
    if (unnamed := name_unknown(copy, approach)) is not None:
        yield unnamed
        return
    main = approach.main
    if main is None or (is_loopback(main.address) and main.fate is Fate.REFUSED):
        yield own_host(copy, approach)
        return
    cause, sure, sentence = _of(main, approach)
    yield finding(
        by_name(cause),
        sentence.format(
            here=copy.label, there=_there(approach, main), wait=f"{wait_s:g} s", detail=main.detail, why=why.why,
            source=approach.source or "no address", by=_by(main, approach), port=approach.port,
        ),
        subject=subject, evidence=evidence, confidence=sure,
    )  # fmt: skip


def name_unknown(copy: Copy, approach: Approach) -> Finding | None:
    """The endpoint's name means nothing on this host."""
    if not isinstance(approach.addresses, Unknown):
        return None
    return finding(
        by_name("hostname-resolution"),
        f"the endpoint's name {approach.host} does not resolve on {copy.label}: {approach.addresses.why}",
        subject=Subject(host=copy.host), evidence=facts(copy, approach), confidence=0.97,
    )  # fmt: skip


def own_host(copy: Copy, approach: Approach) -> Finding:
    """The endpoint is a loopback address: each host looks for node 0 at home."""
    address = approach.host if isinstance(approach.addresses, Unknown) else approach.addresses[0]
    meant = f"{approach.host}, which means {address}," if address != approach.host else address
    return finding(
        by_name("master-unreachable"),
        f"the endpoint {meant} is on every host that host itself: {copy.label} looks for node 0 at home, and the "
        f"{copy.nodes} nodes do not meet",
        evidence=facts(copy, approach), confidence=0.95,
    )  # fmt: skip


def _of(main: Attempt, approach: Approach) -> tuple[str, float, str]:
    if main.fate is not Fate.SILENT:
        return _SENTENCES[main.fate]
    if any(side.fate not in (Fate.SILENT, Fate.NOBODY) for side in approach.side):
        return ("firewall-blocked-ports", 0.95, ("packets from {here} to port {port} of {there} vanish, while the host "
                "answers at other ports: a firewall drops them"))  # fmt: skip
    return ("firewall-blocked-ports", 0.7, ("packets from {here} to {there} vanish, at every port that was tried: a "
            "firewall drops them, or that host is down; if it is not, it says that {here} never came"))  # fmt: skip


def _there(approach: Approach, main: Attempt) -> str:
    name = f" ({approach.host})" if approach.host != main.address else ""
    return f"{main.address}:{main.port}{name}"


def _by(main: Attempt, approach: Approach) -> str:
    if not main.by or main.by == main.address:
        return ""
    return ": this host's own" if main.by == approach.source else f": the answer comes from {main.by}"


def facts(copy: Copy, approach: Approach) -> tuple[Fact, ...]:
    """The copy's way, as receipts."""
    meant = approach.addresses
    said = meant.why if isinstance(meant, Unknown) else ", ".join(meant)
    seen = [(f"{approach.host} means {said} ({approach.resolve_s:.2f} s)", "getaddrinfo")]
    if approach.source:
        seen.append((f"packets there leave from {approach.source} on {approach.interface or 'an interface'}", "routes"))
    if approach.bound:
        seen.append((f"listening at port {approach.port}: {approach.bound}", "bind"))
    for each in (*([approach.main] if approach.main else []), *approach.side):
        by = f", said by {each.by}" if each.by else ""
        detail = f" ({each.detail})" if each.detail else ""
        seen.append((f"{each.address}:{each.port}: {each.fate}{detail} after {each.elapsed_s:.2f} s{by}", "connect"))
    return tuple(Fact(text=text, origin=origin, host=copy.host) for text, origin in seen)
