"""NET010 mtu-black-hole."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

MTU_BLACK_HOLE = Cause(
    code="NET010",
    name="mtu-black-hole",
    summary="Small packets pass between two hosts, and large ones are lost silently.",
    what_happens="An interface sends packets larger than a switch, a tunnel (VXLAN, WireGuard, "
    "IPsec) or a VPN on the path can carry, and the ICMP message that reports this is filtered. "
    "TCP resends the same large segment again and again. Connections open and small messages "
    "pass, so everything looks right until the first tensor.",
    shows_before="`holdfast check` with several hosts sends 256 KiB in each direction: it stalls "
    "at 0 bytes. An MTU of 9000 on one host and 1500 on another.",
    shows_during="Group creation and the first all-reduce of one element succeed; the first large "
    "one never ends. `ss -ti` shows growing `backoff` and `unacked`, and nothing acknowledged.",
    shows_after="After about 15 minutes `writev …: Connection timed out` (gloo), or NCCL's "
    "`socket progress` error; or the collective's own timeout, on all ranks.",
    known_misses="A link that is only slow still advances, which distinguishes it. With "
    "net.ipv4.tcp_mtu_probing=1 the kernel finds a smaller size by itself after some seconds.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="message-too-long",
            tier=Tier.NETWORK,
            confidence=0.5,
            sentence="packets are larger than a link carries",
            patterns=("sendmsg.{0,40}Message too long|EMSGSIZE",),
            examples=("[rank1]: RuntimeError: sendmsg: Message too long",),
        ),
    ),
    remedies=(
        automatic("Find the largest packet that passes.", "ping -M do -s 1372 -c 3 OTHER_HOST"),
        by_hand(
            "Set an MTU that the whole path can carry, on all hosts.",
            "ip link set dev INTERFACE mtu 1400",
        ),
        by_hand(
            "Enable the kernel's MTU probing, or allow ICMP `fragmentation needed`.",
            "sysctl net.ipv4.tcp_mtu_probing=1",
        ),
    ),
    sources=("RFC 2923", "NVIDIA/nccl#1524", "NVIDIA/nccl#2135"),
)
