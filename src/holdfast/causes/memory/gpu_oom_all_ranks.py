"""MEM001 gpu-oom-all-ranks."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

GPU_OOM_ALL_RANKS = Cause(
    code="MEM001",
    name="gpu-oom-all-ranks",
    summary="The workload does not fit into GPU memory; all ranks run out of it.",
    what_happens="Parameters, gradients, optimizer state, activations and buffers together exceed "
    "the device. Every rank allocates the same, so all fail at the same place within moments: at "
    "model creation, in the first backward pass, or with the first long sequence.",
    shows_before="An estimate of the memory per rank near or above that of the device. A job that "
    "fitted an 80 GB card was moved to a 40 GB one; sharding is configured after the model was "
    "created, so each rank holds all of it.",
    shows_during="Nothing hangs: the ranks raise within seconds of each other, with the same last "
    "operation in their trace files.",
    shows_after="torch.OutOfMemoryError (`CUDA out of memory. Tried to allocate ...`) on several "
    "ranks. The failed allocation may be small: it is only the last one. torchrun lists one rank "
    "in its table.",
    known_misses="If the launcher ends the others quickly, the log holds only one rank's error "
    "and looks like oom-on-one-rank-then-timeout. The last exception in each rank's trace file "
    "decides.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.PLAN,
    ),
    signals=(
        LogSignal(
            name="library-handle",
            tier=Tier.DEVICE,
            confidence=0.6,
            sentence="a CUDA library could not be initialized, mostly because GPU memory is full",
            patterns=(
                "(?:CUBLAS|CUDNN|CUSOLVER)_STATUS_NOT_INITIALIZED",
                "(?:[Ff]ailed to|[Cc]ould not) create cu(?:blas|dnn) handle",
            ),
            examples=(
                (
                    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling "
                    "`cublasCreate(handle)`"
                ),
                "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
            ),
        ),
    ),
    log_examples=("n1:5:9 [0] NCCL WARN Cuda failure 'out of memory'",),
    alternatives=("oom-on-one-rank-then-timeout", "duplicate-gpu"),
    treatment=Treatment.MEMORY,
    remedies=(
        by_hand(
            "Use a smaller micro-batch, activation checkpointing, or sharding of parameters "
            "and optimizer state."
        ),
        disruptive(
            "Reduce fragmentation if `reserved but unallocated` in the message is large.",
            "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        ),
        by_hand(
            "Configure sharding before the model is created (DeepSpeed ZeRO-3, FSDP on the "
            "meta device)."
        ),
    ),
    sources=("torch: CUDA semantics, memory management",),
)
