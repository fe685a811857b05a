"""MEM004 shm-too-small."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

SHM_TOO_SMALL = Cause(
    code="MEM004",
    name="shm-too-small",
    summary="The shared memory in /dev/shm is too small for loader workers and NCCL.",
    what_happens="Loader workers pass batches through /dev/shm, and NCCL's shared-memory "
    "transport keeps its buffers there. Containers have 64 MB by default. A write beyond the end "
    "causes a bus error (SIGBUS) in the writing process.",
    shows_before="`df /dev/shm` shows 64 MB, or less than workers x prefetch x batch; leftover "
    "files of ended jobs in it.",
    shows_during="The file system /dev/shm is full. holdfast itself reports that it wrote its "
    "trace files to the run folder instead.",
    shows_after="`DataLoader worker (pid ...) is killed by signal: Bus error`, `unable to write to "
    "file </torch_...>`, `failed to extend /dev/shm/nccl-...`, or a plain SIGBUS (-7) of a rank.",
    known_misses="The worker's message can look like dataloader-worker-died; the bus error, or "
    "`No space left on device` with a /dev/shm path, decides. After the job the files are gone "
    "and it is empty again.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="shm-full",
            tier=Tier.NAMED,
            confidence=0.95,
            sentence="shared memory (/dev/shm) is too small",
            patterns=(
                r"unable to allocate shared memory|allocate shared memory\(shm\)",
                "insufficient shared memory|out of shared memory|raise your shared memory limit",
                "unable to (?:write to|mmap .{1,40} from) file </torch_",
                (
                    r"(?:creating|attaching to) shared memory segment|Could not map /dev/shm/"
                    r"|failed to create shared "
                    r"memory file|failed to extend \S{0,200}shm"
                    r"|posix_fallocate failed"
                ),
                "No space left on device.{0,80}/dev/shm|/dev/shm.{0,80}No space left",
            ),
            examples=(
                (
                    "RuntimeError: unable to write to file </torch_811_3>: No space left on "
                    "device (28)"
                ),
                (
                    "RuntimeError: unable to allocate shared memory(shm) for file "
                    "</torch_811_3_0>: No space left on device (28)"
                ),
            ),
            precedence=-1,
        ),
        LogSignal(
            name="bus-error",
            tier=Tier.CRASH,
            confidence=0.5,
            sentence="a process got a bus error",
            patterns=("Bus error|bus error|SIGBUS",),
            examples=("run.sh: line 7: 4711 Bus error               (core dumped) python fit.py",),
            precedence=-1,
        ),
        LogSignal(
            name="shm-unopened",
            tier=Tier.NAMED,
            confidence=0.7,
            sentence=(
                "shared memory could not be opened: /dev/shm is full, or too many files are open"
            ),
            patterns=("unable to open shared memory object",),
            examples=(
                (
                    "RuntimeError: unable to open shared memory object </torch_811_3> "
                    "in read-write mode"
                ),
            ),
            explained_by="fd-limit",
        ),
    ),
    log_examples=(
        (
            "[2026-02-03 04:05:06,027] [ERROR] [launch.py:325:sigkill_handler] ['python', "
            "'-u', 'fit.py'] exits with return code = -7"
        ),
    ),
    alternatives=("dataloader-worker-died",),
    remedies=(
        disruptive(
            "Give the container more, or the host's whole shared memory with --ipc=host.",
            "docker run --shm-size=32g IMAGE",
        ),
        disruptive(
            "In Kubernetes mount an emptyDir of medium Memory at /dev/shm: `emptyDir: "
            "{medium: Memory, sizeLimit: 32Gi}`."
        ),
        by_hand("As a workaround: fewer workers, or none (num_workers=0)."),
    ),
    sources=("NVIDIA/nccl#290", "NVIDIA/nccl#342", "torch.utils.data: multi-process data loading"),
)
