"""SYNC012 rank-exits-early."""

from __future__ import annotations

from holdfast.causes.remedies import RESTART, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.treatments import Treatment

RANK_EXITS_EARLY = Cause(
    code="SYNC012",
    name="rank-exits-early",
    summary="A rank left the program with status 0 while the others continued.",
    what_happens="sys.exit(0), os._exit(0) or a return from main on one rank: early stopping, an "
    "expired time budget, or finished work. To the launcher this is success. The others wait for "
    "it, or lose the connection to it.",
    shows_before="exit() or return under a condition that each rank evaluates separately: early "
    "stopping on a local loss, a wall-clock limit, a signal flag.",
    shows_during="The process has ended with status 0, its trace file ends with `sys.exit` and "
    "the line; the others are inside the next collective.",
    shows_after="gloo's survivors fail within a second with `Connection closed by peer`; NCCL's "
    "may wait for the whole timeout. torchrun lists the survivors as failed and does not mention "
    "the rank that left.",
    known_misses="os._exit leaves no time to record the line; the last collective's line is "
    "reported instead. A rank that reaches the end of its script is reported as uneven-inputs, "
    "which is mostly the reason.",
    evidence_sources=(EvidenceSource.LOG, EvidenceSource.TRACE),
    may_be_consequence=True,
    log_examples=(
        (
            "step 40: loss 2.1\nINFO: Training complete\nINFO: all files are written\n"
            "[rank1]:[E203 04:05:06.1 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught "
            "collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=64, "
            "NumelOut=64, "
            "Timeout(ms)=600000) ran for 600128 milliseconds before timing out.\n"
            "[rank2]:[E203 04:05:06.1 ProcessGroupNCCL.cpp:632] [Rank 2] Watchdog caught "
            "collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=64, "
            "NumelOut=64, "
            "Timeout(ms)=600000) ran for 600228 milliseconds before timing out."
        ),
    ),
    treatment=Treatment.CODE,
    remedies=(
        by_hand(
            "Decide on all ranks: reduce the stop flag, and leave in the same step: "
            "`dist.all_reduce(stop, op=dist.ReduceOp.MAX)`."
        ),
        by_hand("Let rank 0 measure the time budget and broadcast the decision."),
        RESTART,
    ),
    sources=("isi-nlp/rtg#11", "pytorch/pytorch#83289"),
)
