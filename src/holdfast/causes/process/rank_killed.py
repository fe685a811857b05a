"""PROC006 rank-killed."""

from __future__ import annotations

from holdfast.causes.remedies import RESTART, automatic
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

RANK_KILLED = Cause(
    code="PROC006",
    name="rank-killed",
    summary="A rank was killed by an external signal, and the kernel counts no out-of-memory kill.",
    what_happens="A person, a script, a container runtime or a health check sent SIGKILL (or "
    "another fatal signal). The process could not log anything. The survivors lose their "
    "connection within a second with gloo, or wait.",
    shows_before="Nothing. On shared hosts, cleanup scripts that kill by name are the usual "
    "sender.",
    shows_during="The agent has the exit status of its child: minus the signal number. The trace "
    "file remains and shows the last collective and line.",
    shows_after="torchrun: `failed (exitcode: -9)` with the right rank, and no reason. Survivors: "
    "`Connection reset by peer`, in the longest messages of the log. The cgroup's counter "
    "oom_kill did not change.",
    known_misses="The kernel does not record the sender of a signal unless auditing is on. "
    "Out-of-memory killers in user space (earlyoom, systemd-oomd, a kubelet's eviction) do not "
    "change the counter and look like this. On a host whose exit statuses are unknown it is "
    "peer-lost.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.STACKS,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="other-signal",
            tier=Tier.CRASH,
            confidence=0.45,
            sentence="a process was ended by a signal",
        ),
    ),
    log_examples=(("srun: error: n1: task 2: User defined signal 1\nexit status -10"),),
    may_be_consequence=True,
    remedies=(
        automatic(
            "Find the sender: the system log of that minute, user-space memory killers, "
            "cleanup scripts.",
            "journalctl --since '10 minutes ago' | grep -iE 'oom|kill|evict'",
        ),
        RESTART,
    ),
    sources=("man 7 signal", "systemd-oomd.service(8)"),
)
