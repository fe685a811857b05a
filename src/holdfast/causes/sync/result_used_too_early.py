"""SYNC014 result-used-too-early."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

RESULT_USED_TOO_EARLY = Cause(
    code="SYNC014",
    name="result-used-too-early",
    summary="An asynchronous collective was started without wait(), and its buffer is used.",
    what_happens="With async_op=True, isend and irecv the call returns a handle at once, and the "
    "tensor is filled or sent later. Without `wait()` the next operation reads the old values, "
    "half of the new ones, or changes data that is still to be sent; with NCCL only wait() makes "
    "the compute stream wait for the collective.",
    shows_before="A call with async_op=True whose return value is dropped, and the tensor in the "
    "lines below it.",
    shows_during="Nothing hangs. Values differ from run to run and between ranks, most under high "
    "load; replicas drift apart. A process that ends during a transfer leaves its peer without "
    "the message.",
    shows_after="A loss that is not reproducible; correct results with CUDA_LAUNCH_BLOCKING=1 or "
    "in a debugger.",
    known_misses="A small collective mostly completes in time, so tests pass. A device-wide wait "
    "(torch.cuda.synchronize) hides the fault.",
    evidence_sources=(EvidenceSource.SOURCE,),
    remedies=(
        by_hand(
            "Keep the handle and wait before the buffer is used: `work = dist.all_reduce(x, "
            "async_op=True); ...; work.wait()`."
        ),
        by_hand("If no work overlaps with it, remove async_op."),
    ),
    sources=(
        "torch.distributed: Synchronous and asynchronous collective operations",
        "torch.distributed.isend, irecv: modifying the tensor before the request is done",
    ),
)
