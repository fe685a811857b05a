"""PROC008 rank-uninterruptible-io."""

from __future__ import annotations

from holdfast.causes.remedies import DRAIN, automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

RANK_UNINTERRUPTIBLE_IO = Cause(
    code="PROC008",
    name="rank-uninterruptible-io",
    summary="A rank is in uninterruptible sleep: the kernel waits for a device or a network file "
    "system.",
    what_happens="A read, write, stat or page fault on storage that does not respond (NFS, "
    "Lustre, a failing disk), or a call into a GPU driver that waits for dead firmware, keeps the "
    "process in state D. Signals are deferred, including SIGKILL.",
    shows_before="A network mount with the option hard and a slow server; `nfs: server ... not "
    "responding` in the kernel log.",
    shows_during="State D in two samples; /proc/<pid>/wchan and, as root, /proc/<pid>/stack name "
    "the kernel function. The Python line is the one that accesses the file.",
    shows_after="The others time out. The process remains after SIGKILL until the device "
    "responds; a restart on the same host may use the same mount. `task blocked for more than 120 "
    "seconds` in the kernel log.",
    known_misses="A short state D is normal in every read; the rank is named only if both samples "
    "show it. A sandbox or container runtime may show S instead, and then file-io-blocked or "
    "rank-missing-collective is named.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.STACKS,
    ),
    signals=(
        LogSignal(
            name="task-blocked",
            tier=Tier.WAITING,
            confidence=0.82,
            sentence="the kernel reports a process that waits in it",
            patterns=(
                (
                    r"task (?:python[\w.]{0,12}|pt_\w{1,13}|nccl\w{0,12}):\d+ blocked "
                    r"for more than \d+ seconds"
                ),
            ),
            examples=(("[4711.5] INFO: task python3:8123 blocked for more than 120 seconds."),),
            counter_examples=(
                ("[4711.5] INFO: task jbd2/sda1-8:412 blocked for more than 120 seconds."),
            ),
        ),
    ),
    may_recover=True,
    treatment=Treatment.SUSPECT,
    remedies=(
        automatic(
            "Show what the kernel waits for.",
            "cat /proc/PID/wchan; cat /proc/PID/stack; mount | grep -E 'nfs|lustre'",
        ),
        by_hand(
            "Repair or remount the file system; copy frequently read data to local storage first."
        ),
        DRAIN,
    ),
    sources=("man 5 proc, state D", "NVIDIA/nvidia-resiliency-ext#373"),
)
