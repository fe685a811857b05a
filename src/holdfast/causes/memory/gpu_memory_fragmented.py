"""MEM008 gpu-memory-fragmented."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.treatments import Treatment

GPU_MEMORY_FRAGMENTED = Cause(
    code="MEM008",
    name="gpu-memory-fragmented",
    summary="torch had enough free GPU memory in total, but no contiguous block was large enough.",
    what_happens="torch's allocator takes segments from the driver and splits them. Tensors of "
    "many sizes leave gaps between those still in use; a request that exceeds the largest gap "
    "fails, although the gaps together would hold it. Before it fails the allocator returns "
    "completely empty segments, so the memory that is still reserved and unallocated lies between "
    "live tensors, or waits for another stream.",
    shows_before="Sequence lengths or image sizes that change from batch to batch, evaluation "
    "between training steps, an allocator without expandable segments.",
    shows_during="`torch.cuda.memory_reserved()` stays far above `memory_allocated()`; "
    "`torch.cuda.memory_stats()['num_alloc_retries']` rises, and steps with a retry take longer.",
    shows_after="`CUDA out of memory` where `reserved by PyTorch but unallocated` plus the "
    "driver's free memory exceed the request. In a memory snapshot: no idle block as large as the "
    "request.",
    known_misses="The message does not contain the largest block: memory in pools of CUDA graphs "
    "or of other streams counts as unallocated, too, and expandable segments do not merge it. A "
    "snapshot decides.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
    ),
    log_examples=(
        (
            "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to "
            "allocate 2.00 GiB. GPU 2 has a total capacity of 80.00 GiB of "
            "which 1.00 GiB is free. Including non-PyTorch memory, this "
            "process has 78.00 GiB memory in use. Of the allocated memory "
            "68.00 GiB is allocated by PyTorch, and 9.00 GiB is reserved by "
            "PyTorch but unallocated."
        ),
    ),
    alternatives=("gpu-oom-all-ranks",),
    treatment=Treatment.MEMORY,
    remedies=(
        disruptive(
            "Use expandable segments, which merge gaps (torch 2.1 and later).",
            "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        ),
        by_hand("Use few batch sizes: pad to multiples, or sort by length into buckets."),
        by_hand(
            "Empty the cache where the workload changes (after evaluation): "
            "torch.cuda.empty_cache()."
        ),
    ),
    sources=(
        "torch: c10/cuda/CUDACachingAllocator.cpp, release_cached_blocks",
        "torch: CUDA semantics, optimizing memory usage with PYTORCH_CUDA_ALLOC_CONF",
    ),
)
