"""PROC007 rank-stopped."""

from __future__ import annotations

from holdfast.causes.remedies import RESTART, automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

RANK_STOPPED = Cause(
    code="PROC007",
    name="rank-stopped",
    summary="A rank is stopped: SIGSTOP, a debugger, or a frozen cgroup.",
    what_happens="The process exists and does not run. Its connections stay open, so the others "
    "get no error and wait until the timeout. Reasons: a tracer that was killed, Ctrl-Z, a paused "
    "container or a frozen cgroup.",
    shows_before="Nothing.",
    shows_during="State T or t in /proc/<pid>/stat (or cgroup.freeze 1 with state S or D and no "
    "CPU time); none of its threads advances, so its stack can only be read from outside.",
    shows_after="Timeouts on all the others, `Timed out waiting ...ms for recv operation`, "
    "without its rank. The stopped rank does not react to SIGTERM: torchrun waits 30 s for it "
    "before SIGKILL, holdfast does not.",
    known_misses="Not every kernel shows a frozen cgroup in the state letter. py-spy itself can "
    "leave a process stopped; holdfast sends SIGCONT after each sample. A paused virtual machine "
    "looks like a lost host.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.STACKS,
    ),
    signals=(
        LogSignal(
            name="stopped",
            tier=Tier.CRASH,
            confidence=0.5,
            sentence="a process was stopped",
            patterns=(
                r"^\[\d+\]\+? +Stopped(?: \((?:SIGSTOP|signal|tty output)\))? ",
                "stopped by signal SIGSTOP",
            ),
            examples=("[1]+  Stopped                 python fit.py",),
        ),
    ),
    treatment=Treatment.SUSPECT,
    remedies=(
        by_hand("Resume the process.", "kill -CONT PID"),
        automatic("Check whether a tracer is attached.", "grep TracerPid /proc/PID/status"),
        RESTART,
    ),
    sources=("benfred/py-spy#390", "man 5 proc", "Linux: cgroup-v2.rst, cgroup.freeze"),
)
