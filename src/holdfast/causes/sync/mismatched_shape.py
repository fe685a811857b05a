"""SYNC007 mismatched-shape."""

from __future__ import annotations

from holdfast.causes.remedies import SAME_LINE, by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.treatments import Treatment

MISMATCHED_SHAPE = Cause(
    code="SYNC007",
    name="mismatched-shape",
    summary="Ranks entered the same collective with different numbers of elements.",
    what_happens="An all-reduce of 4 elements meets one of 5. NCCL waits for bytes that never "
    "arrive, crashes or writes past the end; gloo sums elements that do not belong together. On "
    "torch 2.13 with gloo a rank got a wrong sum, without an error, and the job hung only at the "
    "next collective; a larger difference aborted it.",
    shows_before="Tensors sized by the local batch, by local maximum length or by the number of "
    "local keys, passed to all_reduce or all_gather without padding; a last batch that is smaller "
    "on one rank.",
    shows_during="Same group, sequence and operation, but another number of elements on the "
    "minority; the line is known on both sides.",
    shows_after="gloo: `op.preamble.length <= op.nbytes` and SIGABRT on a rank that may be "
    "correct, or a timeout one collective later. NCCL: a timeout with different NumelIn, or "
    "SIGSEGV.",
    known_misses="The collective that hangs is often the one after the mismatch: the trace files "
    "still hold the earlier one until the ring buffer wraps. Equal element counts in another "
    "shape are harmless and not reported.",
    evidence_sources=(
        EvidenceSource.TRACE,
        EvidenceSource.DUMP,
        EvidenceSource.SOURCE,
    ),
    treatment=Treatment.CODE,
    remedies=(
        by_hand(
            "Agree on the size first, pad to it, and cut afterwards: "
            "`dist.all_reduce(length, op=dist.ReduceOp.MAX)`."
        ),
        SAME_LINE,
        disruptive(
            "Distrust values reduced since the sizes first differed; go back to an earlier "
            "checkpoint."
        ),
    ),
    sources=("huggingface/accelerate#167", "torch 2.13.0 with gloo, measured"),
)
