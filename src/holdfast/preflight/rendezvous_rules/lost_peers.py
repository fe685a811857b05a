"""Peers that joined and then stopped responding."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.network.network_fabric_fault import NETWORK_FABRIC_FAULT
from holdfast.core.findings import Fact, Finding, Subject, make_finding
from holdfast.preflight.rendezvous import Observations


def judge(observed: Observations) -> Iterator[Finding]:
    """Yield a finding for each lost peer: its network or route is unstable, or it went down."""
    for number, why in sorted(observed.lost.items()):
        peer = observed.participants[number].peer
        yield make_finding(
            NETWORK_FABRIC_FAULT,
            f"{peer.label} reached {peer.endpoint} and then stopped responding: {why}",
            subject=Subject(host=peer.host),
            evidence=(Fact(text=why, origin="the rendezvous", host=peer.host),),
            confidence=0.8,
        )
