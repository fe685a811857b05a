"""PERF004 rank0-long-work-timeout."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

RANK0_LONG_WORK_TIMEOUT = Cause(
    code="PERF004",
    name="rank0-long-work-timeout",
    summary="One rank, mostly rank 0, did long legitimate work while the others waited in a "
    "collective and timed out.",
    what_happens="Rank 0 evaluates, preprocesses, downloads or saves for longer than the "
    "collective's timeout, and the others wait in the barrier after it. Only the timeout, or the "
    "position of the work, is wrong.",
    shows_before="`if rank == 0:` with unbounded work before a barrier, with the default timeout "
    "of 10 (NCCL) or 30 minutes (gloo).",
    shows_during="Rank 0 is outside of any collective, in the same function for long, with "
    "changing frames or moving bytes; all others are in one barrier. The budgets for checkpoints, "
    "evaluation and compilation apply.",
    shows_after="The barrier's timeout on all other ranks after exactly 10 or 30 minutes. Rank "
    "0's log shows that work continues, or that it ended.",
    known_misses="Work that sleeps (waits for a server) looks like a rank that hangs, unless it "
    "is declared as a phase.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.SOURCE,
    ),
    log_examples=(
        (
            "Running tokenizer on dataset: 9%| | 280/2969 [29:55<4:48:08, "
            "155.57 examples/s]\n"
            "[rank2]:[E203 04:05:06.1 ProcessGroupNCCL.cpp:632] [Rank 2] "
            "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, "
            "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran "
            "for 1800328 milliseconds before timing out."
        ),
        # torch.compile
        (
            "[rank0]: SingleProcess AUTOTUNE benchmarking takes 611.2034 seconds and 48.1177 "
            "seconds precompiling for 20 choices\n"
            "[rank2]:[E203 04:05:06.1 ProcessGroupNCCL.cpp:632] [Rank 2] "
            "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, "
            "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran "
            "for 600031 milliseconds before timing out."
        ),
    ),
    remedies=(
        by_hand(
            "Give the work a phase with a budget: `with holdfast.phase('evaluation', "
            "budget='1h'): ...`."
        ),
        by_hand(
            "Let the others wait in a group with a sufficient timeout: `waiting = "
            "dist.new_group(backend='gloo', timeout=timedelta(hours=2))`."
        ),
        by_hand("Divide the work between all ranks, or do it before the job starts."),
    ),
    sources=(
        "intelligent-machine-learning/dlrover#1727",
        "ray-project/ray#22349",
        "pytorch/pytorch#108971",
        "torch: torch/_inductor/select_algorithm.py",
    ),
)
