"""DATA002 file-io-blocked."""

from __future__ import annotations

from holdfast.causes.remedies import RESTART, automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

FILE_IO_BLOCKED = Cause(
    code="DATA002",
    name="file-io-blocked",
    summary="A rank is blocked in a file read or write: slow or dead storage, a lock, or a pipe "
    "without a partner.",
    what_happens="The main thread is in a system call on a file, a pipe or a lock that does not "
    "return: a FIFO without a writer, a file lock that a dead process holds, a full pipe to a "
    "logger, overloaded storage. The others wait in the next collective.",
    shows_before="Reads from network storage between two collectives on one rank; file locks on "
    "NFS; output piped into a program that may stop reading.",
    shows_during="State S, no CPU time, no bytes moved; /proc/<pid>/syscall shows read, write, "
    "flock or similar, and its first argument is the descriptor whose path /proc/<pid>/fd shows. "
    "The stack ends at the line that accesses the file.",
    shows_after="In the kernel log `nfs: server … not responding`; otherwise only timeouts on "
    "the other ranks. If the storage recovers, the rank continues normally.",
    known_misses="While bytes move, the rank is slow and not blocked. Memory-mapped files block "
    "in page faults, without a system call: only the stack shows them. In state D it is "
    "rank-uninterruptible-io; slow checkpoints are checkpoint-io-slow-timeout.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.STACKS,
    ),
    signals=(
        LogSignal(
            name="storage-lost",
            tier=Tier.WAITING,
            confidence=0.85,
            sentence="the server of a network file system does not answer",
            patterns=(
                (
                    r"nfs: server \S{1,100} not responding|LustreError: "
                    r".{0,120}(?:failed|evicted|timed out)|ceph: mds\d+ (?:hung|caps "
                    "stale)"
                ),
            ),
            examples=("[4711.5] nfs: server filer1 not responding, still trying",),
            counter_examples=("[1.5] nfs: server filer1 OK",),
        ),
    ),
    may_recover=True,
    treatment=Treatment.SUSPECT,
    remedies=(
        automatic(
            "Show which file it is, and which processes have it open.",
            "ls -l /proc/PID/fd; cat /proc/PID/syscall",
        ),
        by_hand(
            "Copy the data to local storage before training, or read it in loader workers "
            "with a timeout."
        ),
        RESTART,
    ),
    sources=("man 5 proc, /proc/pid/syscall", "NVIDIA/nvidia-resiliency-ext#373"),
)
