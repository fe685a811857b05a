"""NET007 ib-error."""

from __future__ import annotations

from holdfast.causes.remedies import DRAIN, automatic, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

IB_ERROR = Cause(
    code="NET007",
    name="ib-error",
    summary="An InfiniBand or RoCE operation failed: retries exceeded, wrong GID index, or no "
    "queue-pair connection.",
    what_happens="NCCL sets up its connections over TCP, then moves the data by RDMA. If the "
    "adapters cannot reach each other (wrong GID index or VLAN on RoCE, another partition, "
    "unconnected rails), connecting the queue pair fails; on a bad link, work requests exhaust "
    "their retries (completion error 12) and the communicator is lost.",
    shows_before="Ports not ACTIVE or at a lower rate in `ibstat`; NCCL_IB_GID_INDEX set by hand "
    "(since NCCL 2.21 it is detected); growing symbol_error and link_downed counters; "
    "NCCL_IB_RETRY_CNT above its maximum of 7.",
    shows_during="All ranks are inside the same first large collective. The TCP part works, so "
    "`NET/IB : Using ...` lines prove nothing.",
    shows_after="`NET/IB : Got completion from peer ... with error 12` (timeout) or `Call to "
    "ibv_modify_qp failed`, with the peer's address: check that pair of ports. Other ranks only "
    "report the remote error.",
    known_misses="`ibv_set_ece failed` and `Failed to open libibverbs` are harmless on many "
    "systems. One message does not show which of the two ports is bad.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="ib-completion",
            tier=Tier.NETWORK,
            confidence=0.9,
            sentence="an InfiniBand operation failed",
            patterns=(
                r"Got completion .{0,80}(?:with (?:error|status)[ =]|status=)(?P<status>\w+)",
                r"mlx\d: .{0,80}got completion with (?P<status>error)",
                r"NET/IB: (?:Got CQE with error|The error is fatal|Fatal error\. Detected \d)",
                (
                    r"(?P<status>[Tt]ransport retry count|RNR retry count|(?:Remote|Local|Memory) "
                    r"[\w ]{2,30} error|receiver-not-ready retry counter) (?:exceeded )?on \w+:\d"
                ),
                r"UCX +ERROR .{0,40}QP 0x[0-9a-f]+ wqe",
            ),
            examples=(
                (
                    "n2:7:9 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.3<4711> "
                    "with error 12, opcode 0"
                ),
                "mlx5: n4: got completion with error: 00000000 00000000",
            ),
            weighed=True,
        ),
        LogSignal(
            name="ib-verb",
            tier=Tier.NETWORK,
            confidence=0.85,
            sentence="an InfiniBand call failed",
            patterns=(
                (
                    r"ibv_(?:modify_qp|create_qp|post_send|post_recv"
                    r"|poll_cq)\w*(?:\([^)]{0,80}\))? .{0,20}fail"
                ),
                r"ibv_(?:query_gid|open_device|query_port|alloc_pd|create_cq)\w* .{0,20}fail",
                (
                    r"IBV_WC_\w*ERR|transport retry (?:counter|count) exceeded|local work queue"
                    r"|vendor err \d+"
                ),
                "wrong GID|GID (?:index|table)",
            ),
            examples=(
                (
                    "n1:5:9 [3] misc/ibvwrap.cc:284 NCCL WARN Call to ibv_modify_qp failed "
                    "with error Network is unreachable"
                ),
            ),
            weighed=True,
        ),
        LogSignal(
            name="ofi-completion",
            tier=Tier.NETWORK,
            confidence=0.85,
            sentence="an operation of the EFA or another libfabric provider failed",
            patterns=(
                (
                    "NET/OFI .{0,80}completed with error|process_err_completion|EFA_IO_"
                    r"COMP_STATUS|prov_errno: \d+"
                ),
                "EI0013|Error ROCE CQE|error cqe status",
            ),
            examples=(
                (
                    "ip-10:7:9 [0] process_err_completion:1723 NCCL WARN NET/OFI "
                    "Operation with NULL context completed with error"
                ),
                (
                    "Execution Error ROCE CQE(EI0013): An error CQE occurred during "
                    "operator execution."
                ),
            ),
            weighed=True,
        ),
    ),
    alternatives=("network-fabric-fault", "comm-config-bad"),
    treatment=Treatment.SUSPECT,
    remedies=(
        automatic(
            "List the state and the error counters of the ports on both hosts.",
            "ibstat; perfquery -x",
        ),
        disruptive("Test the pair without NCCL.", "ib_write_bw -d IB_DEVICE OTHER_HOST"),
        disruptive(
            "On RoCE select the index of the RoCE v2 address (see show_gids); on "
            "rail-optimized networks disable crossing.",
            "export NCCL_IB_GID_INDEX=3 NCCL_CROSS_NIC=0",
        ),
        DRAIN,
    ),
    sources=("NVIDIA/nccl#426", "NVIDIA/nccl#769", "NVIDIA/nccl#2013"),
)
