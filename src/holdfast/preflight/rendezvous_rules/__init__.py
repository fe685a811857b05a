"""Rules over the observations of several hosts; pure.

The leader applies :func:`judge`, whose findings all peers share; a peer that reached no leader
applies :func:`judge_unreached`. :func:`unobserved` lists what could not be observed.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.findings import Finding, Level, Unknown
from holdfast.preflight.rendezvous import EndpointAccess, Observations, Peer
from holdfast.preflight.rendezvous_rules import (
    attendance,
    clocks,
    link_speeds,
    lost_peers,
    mesh,
    mtus,
    published_addresses,
    routes,
)


def judge(observed: Observations) -> tuple[Finding, ...]:
    """Return all findings, those about the endpoint first."""
    return tuple(
        finding
        for rule in (
            attendance.judge,
            lost_peers.judge,
            published_addresses.judge,
            mesh.judge,
            mtus.judge,
            link_speeds.judge,
            clocks.judge,
        )
        for finding in rule(observed)
    )


def judge_unreached(
    peer: Peer, access: EndpointAccess, why: Unknown, wait_s: float
) -> tuple[Finding, ...]:
    """Return the findings of a peer that got no result, from its own attempts."""
    return tuple(routes.judge(peer, access, why, wait_s))


def unobserved(observed: Observations) -> Iterator[str]:
    """Yield what was not measured or not reported."""
    if observed.unmeasured:
        yield f"{observed.unmeasured:,} pairs of hosts were not measured (time limit reached)"
    silent = [
        each.peer.label for each in observed.participants if each.number not in observed.reports
    ]
    if silent:
        yield f"{', '.join(silent[:16])}: no report of the host's own checks"


def failing_hosts(observed: Observations, findings: tuple[Finding, ...]) -> set[str]:
    """Return the labels of hosts with errors; an error of a link counts for both of its ends."""
    labels = {each.peer.host: each.peer.label for each in observed.participants}
    failing = {
        observed.participants[number].peer.label for number in mesh.widespread_hosts(observed)
    }
    for finding in findings:
        if finding.level is Level.ERROR:
            ends = [finding.subject.host, *(finding.subject.link or "").split(" -> ")]
            failing |= {labels[end] for end in ends if end in labels}
    return failing
