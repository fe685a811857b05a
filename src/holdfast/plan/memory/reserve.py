"""Memory beside tensors: the allocator's cache, the CUDA context and NCCL's buffers.

The factors are the only fitted values: fitted to published peaks of reserved memory
(``max_memory_reserved``) in torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, rows of Llama
3.1 8B on 8 and 128 GPUs and of 70B on 256 (:data:`FITTED_ON`). They apply to temporary tensors, not
to model states.
"""

from __future__ import annotations

from holdfast.plan.setup import TrainingSetup

GIB = 1 << 30
#: Reserved over allocated bytes of temporary tensors: op by op, and compiled.
EAGER_FACTOR = 1.09
COMPILED_FACTOR = 1.06
#: Rows of the truth benchmark that the factors were fitted to.
FITTED_ON = ("T001", "T004", "T006", "T007", "T012")
#: Error of most predictions of reserved memory, as a share.
RESERVED_ERROR = 0.12
#: A CUDA context with its kernels, as nvidia-smi shows it on an A100 or H100 before the first
#: tensor: measured by many, documented nowhere.
CUDA_CONTEXT_BYTES = GIB // 2
#: NCCL's buffers for one communicator: 4 MiB (NCCL_BUFFSIZE) per channel, protocol and peer.
COMMUNICATOR_BYTES = GIB // 4


def allocator_factor(setup: TrainingSetup) -> float:
    """Return reserved over allocated bytes."""
    return COMPILED_FACTOR if setup.compiled else EAGER_FACTOR


def framework_bytes(setup: TrainingSetup) -> int:
    """Return the bytes outside of the allocator: CUDA context and NCCL communicators."""
    degrees = (setup.data, setup.tensor, setup.pipeline, setup.context, setup.expert)
    communicators = sum(degree > 1 for degree in degrees) + (1 < setup.replicas < setup.data)
    return CUDA_CONTEXT_BYTES + COMMUNICATOR_BYTES * communicators
