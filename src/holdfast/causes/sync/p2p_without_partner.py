"""SYNC011 p2p-without-partner."""

from __future__ import annotations

from holdfast.causes.remedies import RESTART, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.treatments import Treatment

P2P_WITHOUT_PARTNER = Cause(
    code="SYNC011",
    name="p2p-without-partner",
    summary="A send or a receive waits for a partner that never posts its side.",
    what_happens="A recv waits for a send with the same source, destination, tag and group. The "
    "partner skipped it, used another tag, or is itself blocked in a send: two ranks that both "
    "send first, or both receive first, wait for each other.",
    shows_before="Blocking send and recv in the same order on both sides; a send under a "
    "condition that the receiver does not share; pipeline schedules with an odd stage.",
    shows_during="The trace file of the waiting rank shows the send or recv, its peer and its "
    "line; the peer's trace file shows another call, its own receive, or its end.",
    shows_after="gloo: `Timed out waiting ...ms for recv operation to complete` without a rank. "
    "torch's flight recorder does not record send and recv on gloo, so its dump shows only a "
    "barrier that a rank did not reach.",
    known_misses="A small gloo send completes without its partner, so a missing recv is noticed "
    "later or never. recv from any source has no specific peer, so the wait-for graph has no edge "
    "for it.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.STACKS,
        EvidenceSource.SOURCE,
    ),
    log_examples=(
        (
            "[rank0]:[E203 04:05:06.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught "
            "collective operation timeout: WorkNCCL(SeqNum=3, OpType=SEND, NumelIn=64, "
            "NumelOut=64, "
            "Timeout(ms)=600000) ran for 600028 milliseconds before timing out.\n"
            "[rank1]:[E203 04:05:06.1 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught "
            "collective operation timeout: WorkNCCL(SeqNum=3, OpType=RECV, NumelIn=64, "
            "NumelOut=64, "
            "Timeout(ms)=600000) ran for 600128 milliseconds before timing out."
        ),
    ),
    treatment=Treatment.CODE,
    remedies=(
        by_hand(
            "Post both directions together, so that the order does not matter: `for work in "
            "dist.batch_isend_irecv([send_op, recv_op]): work.wait()`."
        ),
        by_hand("Use the same condition for sending and receiving, known to both ranks."),
        RESTART,
    ),
    sources=("NVIDIA/nccl#479", "NVIDIA/nccl#784"),
)
