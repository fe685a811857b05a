"""NET001 network-interface-wrong."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

NETWORK_INTERFACE_WRONG = Cause(
    code="NET001",
    name="network-interface-wrong",
    summary="NCCL or gloo chose, or was configured to use, an interface from which the peers "
    "cannot be reached.",
    what_happens="Each rank publishes the address of one interface, and the peers connect to it. "
    "With a docker bridge, a VPN, a loopback address or a management port that does not route to "
    "the other hosts every connection fails, although the rendezvous worked. gloo uses the "
    "address that the host name resolves to, often 127.0.1.1 on Debian; NCCL prefers ib* and "
    "avoids docker* and lo.",
    shows_before="Several interfaces are up and NCCL_SOCKET_IFNAME / GLOO_SOCKET_IFNAME are not "
    "set, or name an interface that a host lacks; the host's own name resolves to 127.x; "
    "GLOO_SOCKET_IFNAME was copied from NCCL's with its ^ or = (gloo accepts exact names only).",
    shows_during="Group creation does not finish: ranks wait in init_process_group (gloo) or in "
    "the first collective (NCCL). With gloo one rank often fails within a second while the other "
    "waits silently for the whole timeout.",
    shows_after="`Gloo connectFullMesh failed` or `Connection refused` with an address of the "
    "wrong network, `Unable to find address for: ...`, or NCCL's `Connect to ... failed`. The "
    "rank that fails is often healthy: it could not reach the address that its peer published.",
    known_misses="If the wrong interface routes but is slow (1 Gbit/s instead of 200), nothing "
    "fails; only throughput shows it. A firewall on the right interface causes the same refused "
    "or timed-out connections.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.HOST,
        EvidenceSource.ENVIRONMENT,
    ),
    signals=(
        LogSignal(
            name="no-interface",
            tier=Tier.NETWORK,
            confidence=0.85,
            sentence="no usable network interface was found",
            patterns=(
                "[Nn]o (?:socket )?interface found|Unable to find address for",
                "[Cc]ould not find (?:any )?interface|invalid interface",
                "No such (?:network )?(?:interface|device).{0,30}(?:eth|ib|en)",
                "[Nn]o usable .{0,20}interface",
                "Software caused connection abort|is neither AF_INET",
                "selecting NICs of only one link type|NET/IB : No IP interface|No ibverbs devices",
                r"Unable to find interface for|Interface \S{1,20} not found",
                "NCCL WARN .{0,40}no device found (?:matching|after excluding)",
            ),
            examples=(
                "n2:7:9 [0] NCCL WARN Bootstrap : no socket interface found",
                "n2:7:9 [0] NCCL WARN NET/IB : No IP interface found (starting with ib).",
                (
                    "n2:7:9 [0] NCCL WARN NET/IB : Attempted to merge incompatible devices: "
                    "[0]mlx5_0:1/IB and [1]mlx5_1:1/RoCE. Try selecting NICs of only one link type"
                ),
                (
                    "n1:5:9 [0] NCCL WARN socketStartConnect: Connect to fe80::1%eth1<4> "
                    "failed : Software caused connection abort"
                ),
                (
                    "ncclSocketInit: connecting to address  with family 0 is neither "
                    "AF_INET(2) nor AF_INET6(10)"
                ),
            ),
            weighed=True,
        ),
        LogSignal(
            name="docker-interface",
            tier=Tier.NETWORK,
            confidence=0.5,
            sentence="a bridge or tunnel interface was selected as the training network",
            patterns=(
                (
                    r"(?:NET/Socket|Bootstrap) ?: Using (?:\[0\])?(?:docker|virbr|br-[0-9a-f]"
                    r"|cni|tun|tailscale)"
                ),
            ),
            examples=(
                (
                    "n1:5:9 [0] NCCL INFO NET/Socket : Using [0]docker0:172.17.0.1<0>\n"
                    "n1:5:9 [0] NCCL WARN socketProgress: Connection timed out"
                ),
            ),
            weighed=True,
        ),
        LogSignal(
            name="gloo-connect",
            tier=Tier.NETWORK,
            confidence=0.5,
            sentence="gloo could not connect the ranks",
            patterns=(
                (
                    "Gloo connectFullMesh failed|gloo/transport/tcp.{0,60}(?:connect "
                    "|[Cc]onnect timeout)"
                    "|SO_ERROR"
                ),
            ),
            examples=(
                (
                    "RuntimeError: Gloo connectFullMesh failed with "
                    "[gloo/transport/tcp/pair.cc:144] no error"
                ),
            ),
            weighed=True,
        ),
        LogSignal(
            name="nccl-system-error",
            tier=Tier.NETWORK,
            confidence=0.3,
            sentence="a system call of NCCL failed",
            patterns=("unhandled system error|ncclSystemError|NCCL error.{0,80}system error",),
            examples=(
                (
                    "torch.distributed.DistBackendError: NCCL error in: "
                    "ProcessGroupNCCL.cpp:1970, unhandled system error, NCCL version 2.18.1"
                ),
            ),
            weighed=True,
        ),
        LogSignal(
            name="no-network",
            tier=Tier.NETWORK,
            confidence=0.6,
            sentence="the chosen interface has no route to the peer",
            patterns=("Network is unreachable|ENETUNREACH",),
            examples=(
                (
                    "n1:5:9 [0] NCCL WARN socketStartConnect: Connect to "
                    "10.9.0.2<4711> failed : Network is unreachable"
                ),
            ),
            weighed=True,
        ),
    ),
    alternatives=("firewall-blocked-ports", "ib-error"),
    remedies=(
        disruptive(
            "Set the interface of the training network, on every host.",
            "export NCCL_SOCKET_IFNAME=INTERFACE GLOO_SOCKET_IFNAME=INTERFACE",
        ),
        automatic(
            "Show the addresses that each host would publish.",
            'ip -br addr; getent ahosts "$(hostname)"',
        ),
        by_hand(
            "Make each host's name resolve to its address on that network, not to 127.0.1.1 "
            "(/etc/hosts)."
        ),
    ),
    sources=("pytorch/pytorch#15592", "pytorch/pytorch#8672", "vllm-project/vllm#7074"),
)
