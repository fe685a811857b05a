"""ENV003 fd-limit."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

FD_LIMIT = Cause(
    code="ENV003",
    name="fd-limit",
    summary="A process reached its open-file limit, so sockets, files or shared memory cannot be "
    "opened.",
    what_happens="Sockets to every peer, dataset files, and each tensor that a data-loader worker "
    "passes on (torch's default sharing strategy sends a file descriptor) count against "
    "RLIMIT_NOFILE. At the limit the next open fails wherever it occurs: in the loader, gloo, "
    "NCCL or logging.",
    shows_before="`ulimit -n` of about 1024 with many ranks, many loader workers or many shards. "
    "The limit of a login shell says little: services and containers have separate limits.",
    shows_during="/proc/<pid>/fd of one rank has nearly as many entries as /proc/<pid>/limits "
    "allows, and the number grows from step to step.",
    shows_after="`Too many open files` (errno 24), or `received 0 items of ancdata` from the data "
    "loader, in an ordinary exception of one rank; the others report a lost connection or a "
    "timeout.",
    known_misses="The traceback shows what opened the last file, rarely what holds the other "
    "ones. The trace file records the exception, not the number of files.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="fd-limit",
            tier=Tier.NAMED,
            confidence=0.9,
            sentence="a process has too many open files",
            patterns=(
                (
                    "Too many open files|received 0 items of ancdata|Too many open file descriptors"
                    "|inotify (?:watch|instance) limit reached"
                ),
            ),
            examples=("OSError: [Errno 24] Too many open files: '/data/shard-17'",),
            precedence=-1,
        ),
    ),
    remedies=(
        disruptive("Raise the limit for the job.", "ulimit -n 1048576"),
        by_hand(
            "Share tensors of loader workers by name instead of by descriptor (needs space "
            "in /dev/shm): `torch.multiprocessing.set_sharing_strategy('file_system')`."
        ),
        by_hand(
            "Do not keep a loader's batches in a list; clone what you keep, so that the rest "
            "is freed."
        ),
    ),
    sources=("pytorch/pytorch#973", "pytorch/pytorch#11201", "pytorch/pytorch#34768"),
)
