"""Judges TCP's buffers by the bandwidth-delay product, its backlog, and connection tracking."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.network.master_unreachable import MASTER_UNREACHABLE
from holdfast.causes.network.network_fabric_fault import NETWORK_FABRIC_FAULT
from holdfast.causes.performance.collectives_below_line_rate import COLLECTIVES_BELOW_LINE_RATE
from holdfast.causes.remedies import by_hand
from holdfast.core.findings import Finding, Level, Subject, Unknown, make_finding
from holdfast.host.checks import CheckContext
from holdfast.host.checks.network.tcp import TcpResult

#: Round-trip time under load within a data centre: the network adds queues to some 0.1 ms.
_ROUND_TRIP_S = 1e-3
#: The kernel counts its own overhead in a buffer: about half of it holds data
#: (Documentation/networking/ip-sysctl.rst, ``tcp_adv_win_scale``).
_DATA_SHARE = 0.5
#: The kernel's default since 5.4; each rank opens several connections to the store at once.
_BACKLOG = 4096
_FULL_SHARE = 0.8
_MIB = 1 << 20


def judge(result: TcpResult, _context: CheckContext) -> Iterator[Finding]:
    """Note small buffers and backlogs; warn if the table of tracked connections is nearly full."""
    yield from _judge_buffers(result)
    if isinstance(result.backlog, int) and result.backlog < _BACKLOG:
        yield make_finding(
            MASTER_UNREACHABLE,
            f"net.core.somaxconn is {result.backlog}: if more ranks connect to the rendezvous "
            "store at once, some wait for a retransmission of a second or more",
            level=Level.NOTE,
            evidence=result.facts(),
            confidence=0.5,
            remedies=(
                by_hand(
                    "Raise it on the host of rank 0.",
                    f"sysctl -w net.core.somaxconn={_BACKLOG} "
                    f"net.ipv4.tcp_max_syn_backlog={_BACKLOG}",
                ),
            ),
        )
    if result.max_tracked and (result.tracked or 0) > _FULL_SHARE * result.max_tracked:
        yield make_finding(
            NETWORK_FABRIC_FAULT,
            f"the kernel tracks {result.tracked} of at most {result.max_tracked} connections: "
            "beyond, it drops packets of new ones",
            level=Level.WARNING,
            evidence=result.facts(),
            confidence=0.7,
            remedies=(
                by_hand(
                    "Raise the limit.",
                    f"sysctl -w net.netfilter.nf_conntrack_max={4 * result.max_tracked}",
                ),
            ),
        )


def _judge_buffers(result: TcpResult) -> Iterator[Finding]:
    if isinstance(result.receive_bytes, Unknown) or isinstance(result.send_bytes, Unknown):
        return
    smallest = min(result.receive_bytes, result.send_bytes)
    product = result.speed_mbit * 1e6 / 8 * _ROUND_TRIP_S
    if not smallest or smallest * _DATA_SHARE >= product:
        return
    rate = smallest * _DATA_SHARE * 8 / _ROUND_TRIP_S / 1e9
    needed = 1 << (int(product / _DATA_SHARE) - 1).bit_length()
    yield make_finding(
        COLLECTIVES_BELOW_LINE_RATE,
        f"TCP buffers of at most {smallest / _MIB:.3g} MiB limit a connection over "
        f"{result.interface} to {rate:.2g} of {result.speed_mbit / 1000:g} Gbit/s at a round-trip "
        f"time of {_ROUND_TRIP_S * 1e3:g} ms: the bandwidth-delay product is "
        f"{product / _MIB:.3g} MiB, and half of a buffer holds data",
        level=Level.NOTE,
        subject=Subject(link=result.interface),
        evidence=result.facts(),
        confidence=0.5,
        remedies=(
            by_hand(
                "If ranks communicate over TCP (gloo, or NCCL without RDMA), raise the limits on "
                "every host; measure the round-trip time with ping first.",
                f"sysctl -w net.core.rmem_max={needed} net.core.wmem_max={needed} "
                f"net.ipv4.tcp_rmem='4096 131072 {needed}' net.ipv4.tcp_wmem='4096 65536 {needed}'",
            ),
        ),
    )
