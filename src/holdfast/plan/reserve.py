"""What stands in memory beside tensors: what the allocator keeps and cannot use, and what CUDA and NCCL take.

The factors are fitted, and are all that is: on published peaks of reserved memory (``max_memory_reserved``) in
torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, rows of Llama 3.1 8B on 8 and 128 GPUs and of 70B on 256
(:data:`FITTED_ON`). They apply to what comes and goes, not to what is held throughout.
"""

from __future__ import annotations

from holdfast.plan.setup import Setup

GIB = 1 << 30
#: Reserved over allocated, of what comes and goes: op by op, and compiled.
EAGER = 1.09
COMPILED = 1.06
#: Rows of the truth benchmark that the factors were fitted on.
FITTED_ON = ("T001", "T004", "T006", "T007", "T012")
#: Of all that is reserved: how far predictions are off where they were compared, most of them.
ERROR = 0.12
#: A CUDA context with its kernels, as nvidia-smi shows it on an A100 or H100 before the first tensor: measured by many,
#: promised by none.
CONTEXT = GIB // 2
#: NCCL's buffers for one communicator: 4 MiB (NCCL_BUFFSIZE) for each channel, protocol and peer.
COMMUNICATOR = GIB // 4


def factor(setup: Setup) -> float:
    """Reserved over allocated."""
    return COMPILED if setup.compiled else EAGER


def framework(setup: Setup) -> int:
    """Bytes outside of the allocator: the context, and a communicator for each way in which ranks meet."""
    ways = (setup.data, setup.tensor, setup.pipeline, setup.context, setup.expert)
    meeting = sum(degree > 1 for degree in ways) + (1 < setup.replicas < setup.data)
    return CONTEXT + COMMUNICATOR * meeting
