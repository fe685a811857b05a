"""SYNC008 mismatched-dtype."""

from __future__ import annotations

from holdfast.causes.remedies import COMPARE_SEQUENCES, SAME_LINE, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.treatments import Treatment

MISMATCHED_DTYPE = Cause(
    code="SYNC008",
    name="mismatched-dtype",
    summary="Ranks entered the same collective with tensors of different dtypes.",
    what_happens="One rank reduces float32, another float64, bfloat16 or int: autocast on some "
    "ranks, a loss that is a Python number on one, a loaded checkpoint of another precision. With "
    "different widths gloo aborts a process; with equal widths (float32 and int32) it adds the "
    "bits and returns garbage on all ranks.",
    shows_before="Tensors created from local Python values without dtype=; casts under a "
    "condition on local data.",
    shows_during="Same group, sequence and operation, but another dtype on the minority. If gloo "
    "has already aborted a rank, the trace files of all ranks still hold the two calls.",
    shows_after="`Received data size doesn't match expected size. Is there a distributed "
    "collective mismatch in your code?` and exit status -6 on one rank, often a correct one; "
    "`Connection reset by peer` on the others.",
    known_misses="The rank that aborts is the one that received the longer message; it is named "
    "only if nothing else is known. Equal widths leave no trace but wrong values.",
    evidence_sources=(EvidenceSource.TRACE,),
    treatment=Treatment.CODE,
    remedies=(
        by_hand(
            "Set the dtype where the tensor is created: `torch.tensor(value, "
            "dtype=torch.float32, device=device)`."
        ),
        SAME_LINE,
        COMPARE_SEQUENCES,
    ),
    sources=("torch 2.13.0 with gloo, measured", "gloo: gloo/transport/tcp/pair.cc"),
)
