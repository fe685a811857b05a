"""CONF001 comm-config-bad."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

COMM_CONFIG_BAD = Cause(
    code="CONF001",
    name="comm-config-bad",
    summary="A communication setting is wrong: an NCCL variable, an overlap option or similar.",
    what_happens="An algorithm or protocol that does not exist here, a forced transport, a "
    "framework's communication-overlap option, a buffer or channel count out of range. Setup "
    "fails, collectives hang, or they run at a fraction of the speed.",
    shows_before="Variables that force a choice: NCCL_ALGO, NCCL_PROTO, NCCL_NET, NCCL_P2P_LEVEL, "
    "NCCL_IB_*. Values that are misparsed: `8M` is 8, a leading 0 is octal, an unknown NCCL_ALGO "
    "fails since 2.24. Settings that differ between hosts.",
    shows_during="All ranks are in the same early collective and none of them has a fault; or the "
    "job runs and is slow.",
    shows_after="A watchdog timeout at a small sequence number on all ranks, or ncclInvalidUsage. "
    "The rank that reports first is arbitrary.",
    known_misses="The symptoms are those of network-fabric-fault: same collective, no rank "
    "missing. Only removing the setting distinguishes them. Disabling P2P or forcing tree `to be "
    "safe` is itself such a setting and costs bandwidth.",
    evidence_sources=(EvidenceSource.LOG,),
    signals=(
        LogSignal(
            name="nccl-config",
            tier=Tier.NAMED,
            confidence=0.6,
            sentence="a communication setting is not accepted",
            patterns=(
                r"NCCL WARN .{0,60}(?:[Ii]nvalid|[Uu]nknown|[Uu]nsupported) .{0,40}NCCL_\w+",
                r"NCCL_(?:ALGO|PROTO|IB_HCA)\b.{0,60}(?:not|no |[Uu]nknown|[Ii]nvalid)",
                "[Tt]p[_-]comm[_-]overlap|ub_cfg|userbuffers|Too many SMs",
                "no algorithm/protocol available",
                (
                    "NCCL WARN (?:XML (?:Topology|Graph) has wrong version|Could not open XML "
                    "graph file)"
                ),
                "NCCL WARN (?:No transport found for rank|Split shares resources, but parent comm)",
                (
                    "UCX +ERROR .{0,40}no (?:active messages|remote registered memory access"
                    "|auxiliary|usable) .{0,40}(?:transports? to|transports)"
                    "|UCX +(?:ERROR|WARN) .{0,60}(?:transport|network device) '[^']{1,40}' is not "
                ),
                r"NCCL WARN Invalid config .{1,60} attribute value",
                r"NCCL_BUFFSIZE set by environment to \d{10}",
            ),
            examples=(
                "n1:5:9 [0] NCCL WARN NCCL_IB_HCA set to mlx5_77 : no matching device",
                "n1:5:9 [0] NCCL WARN No transport found for rank 3[1b000] -> rank 4[1c000]",
                (
                    "[1770000000.811] [n4:811  :0] select.c:630  UCX  ERROR   no active messages "
                    "transport to <no debug data>: self/memory - Destination is unreachable"
                ),
                "n1:5:9 [0] NCCL WARN XML Topology has wrong version 2, 1 needed",
            ),
        ),
        LogSignal(
            name="nccl-internal-error",
            tier=Tier.NETWORK,
            confidence=0.3,
            sentence="NCCL reports an internal error",
            patterns=("ncclInternalError|NCCL.{0,60}internal error",),
            examples=(
                (
                    "torch.distributed.DistBackendError: NCCL error in: "
                    "ProcessGroupNCCL.cpp:1970, internal error, NCCL version 2.18.1"
                ),
            ),
            weighed=True,
        ),
    ),
    alternatives=("watchdog-timeout-straggler",),
    treatment=Treatment.CODE,
    remedies=(
        disruptive(
            "Start once without the forced settings; NCCL then chooses by topology.",
            "env -u NCCL_ALGO -u NCCL_PROTO -u NCCL_P2P_DISABLE -u NCCL_P2P_LEVEL -u "
            "NCCL_NET holdfast run SCRIPT",
        ),
        disruptive(
            "Show the variables that NCCL reads.",
            "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ENV holdfast run SCRIPT",
        ),
        by_hand(
            "Disable the framework's communication overlap, to check whether it is the reason."
        ),
    ),
    sources=("NVIDIA NCCL user guide: Environment variables",),
)
