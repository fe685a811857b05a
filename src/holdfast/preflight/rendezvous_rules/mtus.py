"""Whether the hosts use the same MTU."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.network.mtu_black_hole import MTU_BLACK_HOLE
from holdfast.core.findings import Finding, Level
from holdfast.preflight.host_differences import HostProperty, property_differences
from holdfast.preflight.rendezvous import Observations, Peer

_MTU = HostProperty("MTU", "interfaces", str, MTU_BLACK_HOLE, Level.WARNING)


def judge(observed: Observations) -> Iterator[Finding]:
    """Compare the interfaces that gloo publishes; TCP adapts to the smaller MTU, RDMA does not."""
    peers = [each.peer for each in observed.participants]
    yield from property_differences(
        _MTU, {peer.label: f"{mtu} bytes" for peer in peers if (mtu := _mtu(peer)) is not None}
    )


def _mtu(peer: Peer) -> int | None:
    used = next((each.interface for each in peer.published if each.library == "gloo"), "")
    return next((each.mtu for each in peer.interfaces if each.name == used), None)
