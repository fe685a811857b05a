"""MEM002 oom-on-one-rank-then-timeout."""

from __future__ import annotations

from holdfast.causes.remedies import RESTART, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.treatments import Treatment

OOM_ON_ONE_RANK_THEN_TIMEOUT = Cause(
    code="MEM002",
    name="oom-on-one-rank-then-timeout",
    summary="One rank runs out of memory; the others wait for it, then lose their connection or "
    "time out.",
    what_happens="Inputs differ between ranks: one gets the longest sequence, more experts' "
    "tokens or the rank-0 extras (logging, the gathered state dict). It raises. If the exception "
    "ends the process, the others report a lost peer; if the program catches it and skips the "
    "batch, this rank is one collective behind and the job hangs.",
    shows_before="An `except torch.OutOfMemoryError` around the step with collectives inside or "
    "after it; batches whose size depends on the data; retries that halve the batch on one rank "
    "only.",
    shows_during="The rank has raised, which its trace file records with the line, or is inside "
    "its handler; the others are inside the next collective.",
    shows_after="One rank with `CUDA out of memory` (or MemoryError, or the CPU allocator's "
    "`can't allocate memory`), and many with `Connection closed by peer` or a watchdog timeout. "
    "These are consequences.",
    known_misses="A handler that swallows the error and prints nothing leaves no text: then the "
    "skipped collective is found (rank-skips-collective), but not its reason.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.SNAPSHOT,
    ),
    log_examples=(
        (
            "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to "
            "allocate 2.00 GiB.\n"
            "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] "
            "Connection closed by peer [10.0.0.2]:4711"
        ),
    ),
    alternatives=("gpu-oom-all-ranks",),
    treatment=Treatment.MEMORY,
    remedies=(
        by_hand(
            "Decide on all ranks: share the failure before any of them skips or retries: "
            "`dist.all_reduce(failed, op=dist.ReduceOp.MAX)`."
        ),
        by_hand(
            "Bound the input: limit the tokens per batch, or sort the longest sequences into "
            "the first step."
        ),
        RESTART,
    ),
    sources=("mosaicml/composer#2117", "mosaicml/composer#3016", "mosaicml/composer#3510"),
)
