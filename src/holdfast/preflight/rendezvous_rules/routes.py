"""Why a peer did not reach the endpoint, from its own attempts only."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.network.firewall_blocked_ports import FIREWALL_BLOCKED_PORTS
from holdfast.causes.network.hostname_resolution import HOSTNAME_RESOLUTION
from holdfast.causes.network.launch_arguments_differ import LAUNCH_ARGUMENTS_DIFFER
from holdfast.causes.network.master_unreachable import MASTER_UNREACHABLE
from holdfast.causes.network.network_fabric_fault import NETWORK_FABRIC_FAULT
from holdfast.causes.network.port_in_use import PORT_IN_USE
from holdfast.core.findings import Cause, Fact, Finding, Subject, Unknown, make_finding
from holdfast.preflight.rendezvous import (
    ConnectAttempt,
    ConnectOutcome,
    EndpointAccess,
    Peer,
    ProtocolMismatch,
)
from holdfast.preflight.rendezvous.addresses import is_loopback

#: Outcome of the attempt at the endpoint -> cause, confidence, and the sentence.
_SENTENCES: dict[ConnectOutcome, tuple[Cause, float, str]] = {
    ConnectOutcome.NO_ROUTE: (
        MASTER_UNREACHABLE,
        0.98,
        "{here} has no route to {there}: no network of this host leads there",
    ),
    ConnectOutcome.NO_HOST: (
        MASTER_UNREACHABLE,
        0.95,
        (
            "no host answers at {there}, tried from {here} ({source}): the address is unused, or "
            "its host is down"
        ),
    ),
    ConnectOutcome.REJECTED: (
        FIREWALL_BLOCKED_PORTS,
        0.97,
        "a firewall rejects connections from {here} to {there}{by}",
    ),
    ConnectOutcome.REFUSED: (
        MASTER_UNREACHABLE,
        0.8,
        (
            "no process listened at {there} for {wait}, although the host answers: node 0 did not "
            "start there, or a firewall resets connections from {here}"
        ),
    ),
    ConnectOutcome.FOREIGN_SERVICE: (PORT_IN_USE, 0.9, "another service uses {there}: {detail}"),
    ConnectOutcome.INCOMPATIBLE: (
        PORT_IN_USE,
        0.9,
        "another `holdfast check` uses {there}: {detail}",
    ),
    ConnectOutcome.FAILED: (MASTER_UNREACHABLE, 0.7, "{here} cannot connect to {there}: {detail}"),
    ConnectOutcome.OPEN: (
        NETWORK_FABRIC_FAULT,
        0.6,
        "{here} reached {there} and lost the connection: {why}",
    ),
}


def judge(peer: Peer, access: EndpointAccess, why: Unknown, wait_s: float) -> Iterator[Finding]:
    """Yield the reason; if packets only vanish, it also names a host that is down."""
    subject = Subject(host=peer.host)
    evidence = access_facts(peer, access)
    if isinstance(why, ProtocolMismatch):
        leader = f"the leader at {peer.endpoint}"
        message = (
            f"{peer.label} and {leader} run different commands, for example `--connect` on one only"
        )
        if why.version != peer.version:
            message = (
                f"{peer.label} has holdfast {peer.version}, and {leader} has {why.version}: "
                "these versions are incompatible"
            )
        yield make_finding(
            LAUNCH_ARGUMENTS_DIFFER,
            message,
            subject=subject,
            evidence=(*evidence, Fact(text=why.why, origin="the rendezvous", host=peer.host)),
            confidence=0.95,
        )
        return
    if (unresolved := unresolved_endpoint(peer, access)) is not None:
        yield unresolved
        return
    main = access.main
    refused = main is not None and main.outcome is ConnectOutcome.REFUSED
    if main is None or (is_loopback(main.address) and refused):
        yield loopback_endpoint(peer, access)
        return
    cause, confidence, sentence = _select_sentence(main, access)
    yield make_finding(
        cause,
        sentence.format(
            here=peer.label,
            there=_endpoint(access, main),
            wait=f"{wait_s:g} s",
            detail=main.detail,
            why=why.why,
            source=access.source or "no address",
            by=_icmp_sender(main, access),
            port=access.port,
        ),
        subject=subject,
        evidence=evidence,
        confidence=confidence,
    )


def unresolved_endpoint(peer: Peer, access: EndpointAccess) -> Finding | None:
    """Return a finding if the endpoint's name does not resolve on this host."""
    if not isinstance(access.addresses, Unknown):
        return None
    return make_finding(
        HOSTNAME_RESOLUTION,
        f"the endpoint's name {access.host} does not resolve on {peer.label}: "
        f"{access.addresses.why}",
        subject=Subject(host=peer.host),
        evidence=access_facts(peer, access),
        confidence=0.97,
    )


def loopback_endpoint(peer: Peer, access: EndpointAccess) -> Finding:
    """Return the finding that the endpoint is a loopback address: each host connects to itself."""
    address = access.host if isinstance(access.addresses, Unknown) else access.addresses[0]
    endpoint = f"{access.host} ({address})" if address != access.host else address
    return make_finding(
        MASTER_UNREACHABLE,
        f"the endpoint {endpoint} is a loopback address: {peer.label}, like every host, connects "
        f"to itself, and the {peer.nodes} nodes do not meet",
        evidence=access_facts(peer, access),
        confidence=0.95,
    )


def _select_sentence(main: ConnectAttempt, access: EndpointAccess) -> tuple[Cause, float, str]:
    if main.outcome is not ConnectOutcome.TIMED_OUT:
        return _SENTENCES[main.outcome]
    unanswered = (ConnectOutcome.TIMED_OUT, ConnectOutcome.NO_HOST)
    if any(side.outcome not in unanswered for side in access.side):
        return (
            FIREWALL_BLOCKED_PORTS,
            0.95,
            (
                "a firewall drops packets from {here} to port {port} of {there}; the host answers "
                "on other ports"
            ),
        )
    return (
        FIREWALL_BLOCKED_PORTS,
        0.7,
        (
            "packets from {here} to {there} are dropped on every port that was tried: a firewall "
            "drops them, or that host is down; if it is up, it reports {here} as missing"
        ),
    )


def _endpoint(access: EndpointAccess, main: ConnectAttempt) -> str:
    name = f" ({access.host})" if access.host != main.address else ""
    return f"{main.address}:{main.port}{name}"


def _icmp_sender(main: ConnectAttempt, access: EndpointAccess) -> str:
    if not main.by or main.by == main.address:
        return ""
    own = main.by == access.source
    return ": this host's own" if own else f": the ICMP error comes from {main.by}"


def access_facts(peer: Peer, access: EndpointAccess) -> tuple[Fact, ...]:
    """Return how the peer accessed the endpoint as evidence."""
    addresses = access.addresses
    resolved = addresses.why if isinstance(addresses, Unknown) else ", ".join(addresses)
    facts = [(f"{access.host}: {resolved} ({access.resolve_s:.2f} s)", "getaddrinfo")]
    if access.source:
        interface = access.interface or "an interface"
        facts.append((f"packets there leave from {access.source} on {interface}", "routes"))
    if access.bound:
        facts.append((f"listening on port {access.port}: {access.bound}", "bind"))
    for attempt in (*([access.main] if access.main else []), *access.side):
        by = f", ICMP error from {attempt.by}" if attempt.by else ""
        detail = f" ({attempt.detail})" if attempt.detail else ""
        text = (
            f"{attempt.address}:{attempt.port}: {attempt.outcome}{detail} "
            f"after {attempt.elapsed_s:.2f} s{by}"
        )
        facts.append((text, "connect"))
    return tuple(Fact(text=text, origin=origin, host=peer.host) for text, origin in facts)
