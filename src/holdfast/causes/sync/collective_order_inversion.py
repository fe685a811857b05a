"""SYNC006 collective-order-inversion."""

from __future__ import annotations

from holdfast.causes.remedies import RESTART, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.treatments import Treatment

COLLECTIVE_ORDER_INVERSION = Cause(
    code="SYNC006",
    name="collective-order-inversion",
    summary="Ranks entered collectives of two groups in opposite order and wait for each other in "
    "a cycle.",
    what_happens="Rank a is in a collective of group A and waits for member b, which is in a "
    "collective of group B and waits for a. No rank is slow, dead or missing, and none can "
    "continue: a deadlock. Reasons: dictionaries and sets iterated in different order, "
    "collectives issued by several threads or autograd hooks, pipelines that mix groups.",
    shows_before="Two groups with common members, and loops over a set, a dict filled in "
    "different order, or os.listdir; collectives from a background thread.",
    shows_during="The wait-for graph has a cycle: each of its ranks is inside a collective, and "
    "other ranks wait for it in another one. The verdict lists the cycle with both lines.",
    shows_after="Timeouts in two or more groups at once, each naming members that were busy in "
    "the other. torch's analyzer prints one `missing ranks` block for each group and does not "
    "report the cycle.",
    known_misses="Two NCCL communicators can also block each other on the device although all "
    "ranks call them in the same order; then the graph has no cycle and network-fabric-fault is "
    "named. A cycle through a lock or a queue in Python is only partly visible.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.DUMP,
        EvidenceSource.STACKS,
        EvidenceSource.SOURCE,
    ),
    log_examples=(
        (
            "[rank0]:[E203 04:05:06.1 ProcessGroupNCCL.cpp:2271] [PG ID 3 PG GUID 3(mesh_tp) Rank "
            "0]  failure detected by watchdog at work sequence id: 12 PG status: last enqueued "
            "work: 12, last completed work: 11\n"
            "[rank1]:[E203 04:05:06.1 ProcessGroupNCCL.cpp:2271] [PG ID 3 PG GUID 3(mesh_tp) Rank "
            "1]  failure detected by watchdog at work sequence id: 12 PG status: last enqueued "
            "work: 12, last completed work: 11\n"
            "[rank2]:[E203 04:05:06.1 ProcessGroupNCCL.cpp:2271] [PG ID 4 PG GUID 4(mesh_dp) Rank "
            "2]  failure detected by watchdog at work sequence id: 5 PG status: last enqueued "
            "work: 5, last completed work: 4\n"
            "[rank3]:[E203 04:05:06.1 ProcessGroupNCCL.cpp:2271] [PG ID 4 PG GUID 4(mesh_dp) Rank "
            "3]  failure detected by watchdog at work sequence id: 5 PG status: last enqueued "
            "work: 5, last completed work: 4"
        ),
    ),
    treatment=Treatment.CODE,
    remedies=(
        by_hand(
            "Enter the groups in the same order on all ranks: iterate over sorted keys, "
            "never over a set."
        ),
        by_hand("Issue all collectives from one thread."),
        RESTART,
    ),
    sources=(
        "meta-pytorch/torchrec#4149",
        "NVIDIA/nccl#195",
        "NVIDIA/nccl#574",
        "NVIDIA/nvalchemi-toolkit#143",
    ),
)
