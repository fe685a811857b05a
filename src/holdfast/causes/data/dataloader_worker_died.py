"""DATA001 dataloader-worker-died."""

from __future__ import annotations

from holdfast.causes.remedies import RESTART, by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

DATALOADER_WORKER_DIED = Cause(
    code="DATA001",
    name="dataloader-worker-died",
    summary="A data-loader worker of a rank died, or has been deadlocked since its fork.",
    what_happens="Workers are separate processes. One is killed (memory, /dev/shm, a crash in a "
    "decoder), and the rank raises or waits for a batch that never arrives. Or it never worked: "
    "fork copied a lock that another thread held (OpenCV, gRPC, a logging handler, CUDA), and the "
    "worker waits for a thread that does not exist in it. The rank then waits in its loader, and "
    "the others wait for the rank.",
    shows_before="num_workers above 0 with fork, and threads or CUDA in use before the loader "
    "starts; timeout=0 (the default), with which the loader waits without a limit; too little "
    "memory for ranks x workers x prefetch.",
    shows_during="The rank's stack ends in torch/utils/data/dataloader.py, waiting on the queue; "
    "one of its child processes is missing or a zombie. If all are alive, a deadlock is likely: "
    "their stacks do not change.",
    shows_after="`DataLoader worker (pid ...) is killed by signal: Killed / Bus error / "
    "Segmentation fault`, `DataLoader worker (pid(s) ...) exited unexpectedly`, or silence. The "
    "other ranks report timeouts.",
    known_misses="A slow worker looks like a deadlocked one until it delivers: it is not reported "
    "while its stack or CPU time changes. Loaders other than torch's are reported as "
    "rank-missing-collective at their line.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.STACKS,
    ),
    signals=(
        LogSignal(
            name="loader-killed",
            tier=Tier.NAMED,
            confidence=0.85,
            sentence="a data-loader worker died",
            patterns=(
                (
                    r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal|exited "
                    r"unexpectedly)"
                ),
                "Pin memory thread exited unexpectedly|BrokenProcessPool: ",
                "One of the subprocesses has abruptly died",
            ),
            examples=(
                "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed.",
                "RuntimeError: One of the subprocesses has abruptly died during map operation.",
            ),
        ),
        LogSignal(
            name="loader-timeout",
            tier=Tier.NAMED,
            confidence=0.7,
            sentence="a data-loader worker delivered no batch before the timeout",
            patterns=("DataLoader timed out after",),
            examples=("RuntimeError: DataLoader timed out after 120 seconds",),
        ),
    ),
    alternatives=("shm-too-small", "host-oom-killed"),
    may_recover=True,
    treatment=Treatment.SUSPECT,
    remedies=(
        by_hand(
            "Set a timeout, so that the loader fails instead of waiting: `DataLoader(..., "
            "timeout=120)`."
        ),
        by_hand(
            "Start workers without copying locks: `DataLoader(..., "
            "multiprocessing_context='forkserver')`."
        ),
        disruptive(
            "Run once without workers, where the hidden error is an ordinary exception: "
            "`DataLoader(..., num_workers=0)`."
        ),
        RESTART,
    ),
    sources=(
        "pytorch/pytorch#1355",
        "pytorch/pytorch#75147",
        "bigscience-workshop/Megatron-DeepSpeed#282",
    ),
)
