"""MEM009 gpu-memory-taken-by-others."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

GPU_MEMORY_TAKEN_BY_OTHERS = Cause(
    code="MEM009",
    name="gpu-memory-taken-by-others",
    summary="Other processes hold GPU memory that the job needs.",
    what_happens="The GPU has memory for one of them only. The other may be a rank of an earlier "
    "run that did not end, another user's job, an inference server, or other ranks of the job "
    "itself, each of which has a context (about 0.5 GiB) or a copy of the checkpoint on GPU 0 "
    "because its device was set too late.",
    shows_before="nvidia-smi lists processes on the GPU before the job starts; `torch.load` "
    "without map_location, no torch.cuda.set_device(LOCAL_RANK).",
    shows_during="nvidia-smi shows more memory in use than torch has reserved; several processes "
    "of the job are on GPU 0.",
    shows_after="`CUDA out of memory` with `Process N has ... memory in use` for other processes, "
    "and little `allocated by PyTorch`.",
    known_misses="In a container the driver hides processes outside of it, and pids are those of "
    "the host: torch then lists this very process among the others. Memory reserved by MIG or MPS "
    "is not listed.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
    ),
    log_examples=(
        (
            "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to "
            "allocate 2.00 GiB. GPU 2 has a total capacity of 80.00 GiB of "
            "which 1.00 GiB is free. Process 4711 has 75.00 GiB memory in use. "
            "Including non-PyTorch memory, this process has 4.00 GiB memory in "
            "use. Of the allocated memory 3.00 GiB is allocated by PyTorch, "
            "and 0 bytes is reserved by PyTorch but unallocated."
        ),
    ),
    alternatives=("gpu-oom-all-ranks", "duplicate-gpu"),
    remedies=(
        automatic(
            "Find the process that holds it; end leftovers of an earlier run.",
            "nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory --format=csv",
        ),
        by_hand(
            "If they are ranks of this job: set the device of each rank before the first use "
            'of CUDA, and load checkpoints with map_location="cpu".'
        ),
        by_hand("Request whole GPUs from the scheduler, or start the job on a free one."),
    ),
    sources=("torch: c10/cuda/CUDACachingAllocator.cpp, reportProcessMemoryInfo",),
)
