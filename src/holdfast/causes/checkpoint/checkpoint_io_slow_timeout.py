"""CKPT001 checkpoint-io-slow-timeout."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

CHECKPOINT_IO_SLOW_TIMEOUT = Cause(
    code="CKPT001",
    name="checkpoint-io-slow-timeout",
    summary="Checkpoint I/O was slow or stuck (full disk, slow file system), and the other ranks "
    "timed out.",
    what_happens="One rank, mostly rank 0, writes for longer than the timeout of the collective "
    "in which the others wait; or the disk is full and the writer retries; or all ranks read one "
    "file from overloaded storage at startup.",
    shows_before="The checkpoint's size divided by the measured disk speed is near the group's "
    "timeout; less free space than two checkpoints need; saving on rank 0 followed by a barrier.",
    shows_during="The missing rank's stack is in torch.save, torch.distributed.checkpoint or a "
    "file write; bytes move (slow) or do not (stuck). The budget of the phase `checkpoint` "
    "applies before the rank is reported as stuck.",
    shows_after="`No space left on device` or nothing on the writer, a watchdog timeout on all "
    "others, and a truncated checkpoint. The rank in torchrun's table is one that waited.",
    known_misses="A writer in another library's thread pool shows only a waiting main thread. A "
    "checkpoint that completes just before the timeout is not reported; the margin is not "
    "measured.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="checkpoint-slow",
            tier=Tier.DEVICE,
            confidence=0.6,
            sentence="storage was too slow, or stuck",
            patterns=(
                "Stale file handle|I/O error|Input/output error",
                r"\[Errno (?:107|110|112|117)\] .{1,60}: '/",
            ),
            examples=("[rank0]: OSError: [Errno 5] Input/output error: '/ckpt/step_400/model.pt'",),
            weighed=True,
        ),
    ),
    log_examples=(
        (
            "saving the checkpoint of step 40\nOSError: [Errno 28] No space left on device\n"
            "[rank2]:[E203 04:05:06.1 ProcessGroupNCCL.cpp:632] [Rank 2] Watchdog caught "
            "collective operation timeout: WorkNCCL(SeqNum=811, OpType=ALLREDUCE, NumelIn=1, "
            "NumelOut=1, Timeout(ms)=600000) ran for 600328 milliseconds before timing out."
        ),
    ),
    alternatives=("checkpoint-half-written",),
    remedies=(
        by_hand(
            "Check the space and the speed of the target.",
            "df -h CHECKPOINT_DIR; dd if=/dev/zero of=CHECKPOINT_DIR/.speed bs=16M "
            "count=64 conv=fsync; rm CHECKPOINT_DIR/.speed",
        ),
        by_hand(
            "Declare the expected duration, so that neither the watcher nor a collective "
            "aborts it: `with holdfast.phase('checkpoint', budget='30m'): ...`."
        ),
        by_hand(
            "Write shards (every rank its part), or write to local storage first and copy in "
            "the background."
        ),
    ),
    sources=("NVIDIA/nvidia-resiliency-ext#373", "torch.distributed.checkpoint"),
)
