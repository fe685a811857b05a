"""MEM005 memlock-limit."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

MEMLOCK_LIMIT = Cause(
    code="MEM005",
    name="memlock-limit",
    summary="RLIMIT_MEMLOCK is too low to register memory for RDMA.",
    what_happens="InfiniBand and RoCE adapters need pinned memory. If the limit on locked memory "
    "is small, registering the buffers fails with `Cannot allocate memory`, although plenty is "
    "free.",
    shows_before="`ulimit -l` inside the job is a number of kilobytes and not unlimited: "
    "services, ssh and the scheduler's daemon each have separate limits.",
    shows_during="Nothing hangs for long: the first collective over the adapter fails.",
    shows_after="`Call to ibv_reg_mr failed with error Cannot allocate memory`, or the same for "
    "ibv_create_cq, and `unhandled system error`, on all ranks of the hosts with the low limit.",
    known_misses="A real memory shortage gives the same errno; `ulimit -l` inside the job decides.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="memlock",
            tier=Tier.NAMED,
            confidence=0.9,
            sentence="memory could not be locked for RDMA",
            patterns=(
                (
                    r"RLIMIT_MEMLOCK is|ibv_reg_(?:dmabuf_)?mr\w* failed(?:.{0,60}Cannot "
                    r"allocate|\W*$)"
                    r"|max locked memory.{0,40}(?:exceeded|too)"
                ),
                "memlock.{0,40}(?:too (?:low|small)|exceeded|is not unlimited)",
                r"ibv_create_(?:cq|qp)\w*(?:\([^)]{0,60}\))? failed.{0,40}Cannot allocate",
                "Please set max locked memory|did you run into the locked memory limit",
                "failed to register address 0x.{0,160}: Cannot allocate memory",
                # EFA's provider of libfabric, and its NCCL plugin
                r"Libfabric error: \(-12\)|EFA internal error: \(4112\)",
                r"NET/OFI Unable to register memory .{0,60}RC: -12\b",
            ),
            examples=(
                (
                    "n1:5:9 [0] NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate "
                    "memory"
                ),
                (
                    "libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes. This will severely "
                    "limit memory registrations."
                ),
                "[n2:88] UCX ERROR ibv_create_qp() failed: Cannot allocate memory",
                (
                    "Libfabric error: (-12) Cannot allocate memory\n"
                    "EFA internal error: (4112) Failure to post internal receive buffers"
                ),
                (
                    "n1:5:9 [0] register_mr_buffers:47 NCCL WARN NET/OFI Unable to register memory "
                    "(type = 1) for device 2. RC: -12, Error: Cannot allocate memory"
                ),
            ),
            counter_examples=(
                "limit memlock: 8388608",
                "max locked memory       (kbytes, -l) unlimited",
            ),
            precedence=-2,
        ),
    ),
    remedies=(
        disruptive("Raise the limit where the job starts.", "ulimit -l unlimited"),
        by_hand(
            "Make it permanent: limits.conf, LimitMEMLOCK=infinity of the scheduler's "
            "daemon, --ulimit of docker.",
            "docker run --ulimit memlock=-1 IMAGE",
        ),
    ),
    sources=(
        "NVIDIA/nccl-tests#206",
        "openucx/ucx#8229",
        "awslabs/awsome-distributed-ai#647",
        "aws/aws-ofi-nccl#141",
        "NVIDIA NCCL user guide: Troubleshooting, InfiniBand",
    ),
)
