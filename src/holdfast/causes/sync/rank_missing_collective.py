"""SYNC002 rank-missing-collective."""

from __future__ import annotations

from holdfast.causes.remedies import RESTART, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

RANK_MISSING_COLLECTIVE = Cause(
    code="SYNC002",
    name="rank-missing-collective",
    summary="A rank never entered the collective in which the others wait.",
    what_happens="A collective completes when every member of the group has entered it. One rank "
    "is elsewhere in Python: asleep, in a lock, waiting for another process, or in work that does "
    "not end. The others block inside the collective until its timeout, by default 10 minutes "
    "with NCCL and 30 with gloo. This is the general cause; if the reason for the absence is "
    "known, a more specific cause is named instead.",
    shows_before="Few: any call that can block on one rank only (a lock, a queue, a download, "
    "input()) between two collectives.",
    shows_during="The trace files show that the others entered and did not complete one (group, "
    "sequence), and this rank's last entry before it. Its process is alive and uses little CPU; "
    "two stack samples a second apart show the same line, which is where it is stuck.",
    shows_after="Every waiting rank reports a timeout of a collective that it did enter: "
    "`Watchdog caught collective operation timeout` (NCCL), `Timed out waiting ...ms for recv "
    "operation` (gloo). The missing rank reports nothing. torchrun's table names the rank that "
    "died first: in 30 of 30 measured hangs it was the healthy rank 0.",
    known_misses="A rank that calls collectives through a library that bypasses torch's "
    "dispatcher is reported as missing. If ptrace is denied and the recorder's own dump fails "
    "too, the rank is named without a line. A slow rank that returns later than the stall limit "
    "is suspected, unless its stack, its CPU time or a phase explains the delay; one that returns "
    "later than --act-after (60 s) is restarted.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.DUMP,
        EvidenceSource.STACKS,
        EvidenceSource.SOURCE,
    ),
    signals=(
        LogSignal(
            name="barrier-missing",
            tier=Tier.NAMED,
            confidence=0.9,
            sentence="ranks did not reach a monitored barrier",
            patterns=(r"Ranks? (?P<missing>[\d, ]+?) failed to (?:pass|reach) monitoredBarrier",),
            examples=("[rank0]: RuntimeError: Rank 3 failed to pass monitoredBarrier in 30000 ms",),
        ),
        LogSignal(
            name="ranks-missing",
            tier=Tier.WAITING,
            confidence=0.75,
            sentence="it did not submit what the other ranks wait for",
            patterns=(
                r"\[missing ranks: (?P<missing>[\d, ]+)\]",
                (
                    r"(?:^|[>\] :])(?P<missing>\d{1,6}): "
                    r"\[(?:allreduce|allgather|broadcast|alltoall|reducescatter"
                    r"|Distributed\w*_All|Horovod)"
                ),
                (
                    r"[Rr]anks? \[?(?P<missing>\d[\d, ]*)\]? (?:(?:has|have) not (?:yet "
                    ")?(?:joined|arrived|entered|reached)|did not "
                    "(?:join|arrive|enter|reach)|(?:is|are) (?:still )?missing)"
                ),
                r"(?:[Mm]issing ranks?|[Ww]aiting (?:for|on) ranks):? \[?(?P<missing>\d[\d, ]*)\]?",
                (
                    "not received the Notify record from remote rank: "
                    r"?\[?(?P<missing>\d+)"
                ),
            ),
            examples=(
                "[1,1]<stderr>:HorovodBroadcast_dense_1_kernel_0 [missing ranks: 0]",
                ("[0]<stderr>:Missing ranks:\n[0]<stderr>:0: [broadcast.bool.sz]"),
                ("[rank0]: RuntimeError: timed out: ranks 3, 7 have not joined the barrier"),
                "Waiting for ranks: [5, 6]",
                (
                    "EI0002: The wait execution of the Notify register times out. "
                    "Reason: The Notify register has not received the Notify record "
                    "from remote rank: [5]."
                ),
            ),
            counter_examples=(
                "INFO: waiting for ranks to finish",
                "[rank1]: INFO waiting for rank 0 to prepare the data",
            ),
            weighed=True,
        ),
        LogSignal(
            name="hccl-waits",
            tier=Tier.WAITING,
            confidence=0.4,
            sentence="a rank waited in vain for another",
            patterns=(
                (
                    "EI0006: |Getting socket times out|EI0002: |wait execution of the "
                    "Notify register times out"
                ),
            ),
            examples=(
                (
                    "[rank1]: EI0006: Getting socket times out. Reason: Remote Rank "
                    "did not send the data in time. Please check the reason for the "
                    "rank being stuck"
                ),
            ),
        ),
        LogSignal(
            name="ranks-ready",
            tier=Tier.WAITING,
            confidence=0.7,
            sentence="it did not submit what the other ranks wait for",
            patterns=(r"\[ready ranks: (?P<ready>\d[\d, ]*)\]",),
            examples=(
                (
                    "WARNING: One or more tensors were submitted by subset of ranks. "
                    "Stalled ops: HorovodBroadcast_w_0 [ready ranks: 3, 1, 0]"
                ),
            ),
            weighed=True,
        ),
    ),
    log_examples=(
        (
            "RuntimeError: [2] is setting up NCCL communicator and retrieving ncclUniqueId "
            "from [0] via c10d key-value store by key '0', but store->get('0') got error: "
            "Timeout waiting for key: default_pg/0/0 after 1800000 ms"
        ),
    ),
    alternatives=("uneven-inputs", "watchdog-timeout-straggler"),
    may_be_consequence=True,
    echo_in_logs=True,
    may_recover=True,
    treatment=Treatment.SUSPECT,
    remedies=(
        by_hand(
            "Add a timeout to the blocking call at this line, and propagate the failure to "
            "the other ranks."
        ),
        by_hand(
            "If the rank may take that long, give the work a phase with a budget: `with "
            "holdfast.phase('evaluation', budget='20m'): ...`."
        ),
        RESTART,
    ),
    sources=(
        "pytorch/pytorch#113546",
        "NVIDIA/nccl#1260",
        "NVIDIA/nccl#1911",
        "huggingface/accelerate#4139",
    ),
)
