"""NET003 firewall-blocked-ports."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

FIREWALL_BLOCKED_PORTS = Cause(
    code="NET003",
    name="firewall-blocked-ports",
    summary="A firewall, security group or network policy blocks the ports between the peers.",
    what_happens="The rendezvous needs one port on the first host; after it gloo and NCCL open "
    "connections on ephemeral ports in both directions, between all hosts. If only the first port "
    "is open, the ranks find each other and then cannot communicate. Dropped packets cause "
    "silence, rejected ones an immediate error.",
    shows_before="Rules that open the master port only, or one direction only. Ranges that were "
    "narrowed with NCCL_SOCKET_PORT or net.ipv4.ip_local_port_range but not opened accordingly.",
    shows_during="Master port closed: ranks wait in init_process_group. Only data ports closed: "
    "the ranks join the store, and all wait in gloo's full-mesh connect or in NCCL's first "
    "collective. `ss -tnp state syn-sent` on a waiting host shows unanswered connections.",
    shows_after="`n/m clients joined` after the timeout, `Connection timed out` to a port above "
    "32768, or a RendezvousTimeoutError without text. gloo's connect waits five times the group's "
    "timeout. No message names the missing rank.",
    known_misses="From outside, a port that rejects looks like a host without a listener, and a "
    "firewall that drops packets looks like a host that is down.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="connect-timed-out",
            tier=Tier.NETWORK,
            confidence=0.5,
            sentence="a connection between ranks timed out",
            patterns=(
                r"[Cc]onnect to \S+ (?:failed|returned).{0,20}(?:Connection )?timed out",
                "connect.{0,40}ETIMEDOUT|Connection timed out",
                # HCCL (Ascend): a rank cannot connect to the first one
                "topo exchange agent get socket timeout",
            ),
            examples=(
                (
                    "n1:5:9 [0] NCCL WARN socketPollConnect: Connect to 10.0.0.2<4711> "
                    "returned 110(Connection timed out)"
                ),
                (
                    "[ERROR] HCCL(88,python3):2026-02-03-04:05:06.000.001 "
                    "[topoinfo_exchange_agent.cc:190] [88][InitGroupStage][RanktableDetect]topo "
                    "exchange agent get socket timeout! timeout[120]"
                ),
            ),
            weighed=True,
        ),
        LogSignal(
            name="efa-address",
            tier=Tier.NAMED,
            confidence=0.8,
            sentence="a peer cannot be reached over EFA",
            patterns=(
                "Unable to insert remote address into address vector",
                r"Unreachable remote \(never received a response\)|\(connection never established",
            ),
            examples=(
                (
                    "n1:5:9 [0] create_send_comm:5911 NCCL WARN NET/OFI Unable to "
                    "insert remote address into address vector for device 1."
                ),
                (
                    "n1:5:9 [0] NCCL WARN NET/OFI Request 0x7f00 (send) completed with error: err: "
                    "113, flags: 2, prov_errno: 15, strerror: Unreachable remote (never received "
                    "a response) My EFA addr: fi_addr_efa://[fe80::1]:0:9, len: 0"
                ),
            ),
            precedence=-1,
        ),
        LogSignal(
            name="no-route",
            tier=Tier.NETWORK,
            confidence=0.6,
            sentence="a host rejects the connection, as firewalls do, or has no route",
            patterns=(("No route to host|Host is unreachable|EHOSTUNREACH"),),
            examples=(
                (
                    "n1:5:9 [0] NCCL WARN socketStartConnect: Connect to 10.0.0.2<4711> failed "
                    ": No route to host"
                ),
            ),
            weighed=True,
        ),
        LogSignal(
            name="connect-refused",
            tier=Tier.NETWORK,
            confidence=0.45,
            sentence="a connection between ranks was refused: by a firewall, or because nothing "
            "listens at that address",
            patterns=(
                r"[Cc]onnect to (?P<peer>\S+) failed ?: ?Connection refused|Connection refused",
            ),
            examples=(
                (
                    "n1:5:9 [0] NCCL WARN socketStartConnect: Connect to 10.0.0.2<4711> failed "
                    ": Connection refused"
                ),
            ),
            weighed=True,
        ),
    ),
    alternatives=("network-interface-wrong", "master-unreachable", "network-fabric-fault"),
    remedies=(
        automatic(
            "From each other host, try the master port, and a high port that has a listener.",
            "nc -vz MASTER_HOST MASTER_PORT",
        ),
        by_hand(
            "Open all TCP ports between the hosts of the job, in both directions, for this "
            "network only."
        ),
    ),
    sources=(
        "pytorch/pytorch#107021",
        "pytorch/pytorch#105782",
        "ofiwg/libfabric: prov/efa/src/efa_errno.h, efa_strerror.c",
        "aws/aws-ofi-nccl#1294",
        "CANN: HCCL user guide, cluster information negotiation (EI0015)",
    ),
)
