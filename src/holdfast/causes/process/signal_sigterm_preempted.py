"""PROC004 signal-sigterm-preempted."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

SIGNAL_SIGTERM_PREEMPTED = Cause(
    code="PROC004",
    name="signal-sigterm-preempted",
    summary="The scheduler or a person ended the job, or its launcher died: an external SIGTERM, "
    "SIGHUP or SIGINT.",
    what_happens="Preemption, a time limit, scancel, a drained node, a closed terminal or Ctrl-C "
    "ends all processes. The job itself had no fault.",
    shows_before="A time limit shorter than the run; a preemptible partition; a job started from "
    "a login shell without nohup.",
    shows_during="All ranks end within seconds, by a signal that a person or a program sends.",
    shows_after="Exit status -15 (143), `SignalException: ... got signal: 15`, `Sending process "
    "... closing signal SIGTERM` for every rank, and a line of the scheduler (CANCELLED, DUE TO "
    "TIME LIMIT, PREEMPTED). torchrun forwards the signal and kills after 30 seconds.",
    known_misses="The launcher itself sends SIGTERM to the survivors of any other failure: it is "
    "the cause only if no rank failed before. A rank that catches SIGTERM and exits with 0 looks "
    "like rank-exits-early.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
    ),
    signals=(
        LogSignal(
            name="slurm-cancelled",
            tier=Tier.OUTSIDE,
            confidence=0.9,
            sentence="the scheduler ended the job",
            patterns=(
                r"(?:STEP|JOB) [\d.+_]+ ON \S+ CANCELLED AT \S+(?: DUE TO (?P<why>[A-Z ]+))?",
            ),
            examples=(
                (
                    "slurmstepd: error: *** STEP 811.0 ON n1 CANCELLED AT 2026-02-03T04:05:06 "
                    "DUE TO TIME LIMIT ***"
                ),
                (
                    "slurmstepd: error: *** JOB 811 ON n1 CANCELLED AT 2026-02-03T04:05:06 DUE "
                    "TO JOB REQUEUE ***\n"
                    "slurmstepd: error: Failed to send MESSAGE_TASK_EXIT: Connection refused"
                ),
            ),
            weighed=True,
        ),
        LogSignal(
            name="time-limit",
            tier=Tier.OUTSIDE,
            confidence=0.9,
            sentence="the job reached its time limit",
            patterns=(
                (
                    "DUE TO TIME LIMIT|time limit (?:reached|exceeded)|DeadlineExceeded"
                    "|JobState=TIMEOUT|Reason=TimeLimit|TERM_RUNLIMIT|PBS: job killed: walltime"
                ),
            ),
            examples=(
                (
                    "slurmstepd: error: *** JOB 811 ON n1 CANCELLED AT 2026-02-03T04:05:06 DUE "
                    "TO TIME LIMIT ***"
                ),
                (
                    "Warning  DeadlineExceeded  job/fit  Job was active longer than specified "
                    "deadline"
                ),
            ),
            weighed=True,
        ),
        LogSignal(
            name="preempted",
            tier=Tier.OUTSIDE,
            confidence=0.7,
            sentence="the job was preempted",
            patterns=(
                r"\b[Pp]reempted\b|PREEMPT(?:ED|ION)|[Pp]reemption (?:notice|warning|event)",
                r"[Ss]pot (?:instance )?(?:interruption|termination)|\bEvicted\b|scancel",
                r"preempted_ranks=\[(?P<rank>\d+)",
                "PreemptionWatcher: drain detected",
                (
                    "TERMINATING|will be terminated soon|maintenance event|imminent node "
                    "shutdown|TaintManagerEviction|JobState=PREEMPTED"
                ),
            ),
            examples=(
                (
                    "(PreemptionWatcher pid=81) PreemptionWatcher: drain detected: "
                    "preempted_node_ids=['b1'], preempted_ranks=[1]"
                ),
            ),
            counter_examples=("[Tue Feb  3 04:05:06 2026] Dynamic Preempt: none",),
            weighed=True,
        ),
        LogSignal(
            name="terminated",
            tier=Tier.OUTSIDE,
            confidence=0.6,
            sentence="the job received a termination signal",
            patterns=(
                r"[Rr]eceived (?:signal )?(?:Signals\.)?(?:SIGTERM|SIGHUP|SIGINT|15|1|2)\b",
                (
                    "got signal: (?:15|1|2)|[Jj]ob (?:has been|was) cancell?ed|death signal, "
                    "shutting down"
                ),
                (
                    r"Received \d+ death signal|received SIGTERM|SIGHUP|SignalException"
                    r"|KeyboardInterrupt"
                ),
                (
                    r"Job step aborted|terminated with signal SIG(?:TERM|HUP|INT)\b|: line \d+: "
                    r"+\d+ Terminated\b"
                ),
            ),
            examples=(
                (
                    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 77 "
                    "got signal: 15"
                ),
            ),
            weighed=True,
        ),
    ),
    may_be_consequence=True,
    may_start_failure=True,
    remedies=(
        disruptive("Start the job again; it continues from the last checkpoint."),
        by_hand(
            "Let the scheduler send a signal some minutes ahead, and save on that signal on "
            "all ranks: `#SBATCH --signal=B:USR1@300 --requeue`."
        ),
    ),
    sources=(
        "pytorch/pytorch#119856",
        "pytorch/pytorch#68258",
        "pytorch/pytorch#172596",
        "Slurm: sbatch --signal",
    ),
)
