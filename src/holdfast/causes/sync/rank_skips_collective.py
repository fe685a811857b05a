"""SYNC005 rank-skips-collective."""

from __future__ import annotations

from holdfast.causes.remedies import RESTART, by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.treatments import Treatment

RANK_SKIPS_COLLECTIVE = Cause(
    code="SYNC005",
    name="rank-skips-collective",
    summary="A rank skipped a collective that the others called, and is one behind from then on.",
    what_happens="An exception is caught with `continue`, a batch is dropped for a NaN, a handler "
    "retries: this rank skips one collective and matches the others' call n with its own call "
    "n+1. While the signatures agree nothing fails and wrong values are exchanged; the job stops "
    "at the first pair that does not match, or at the end, when the others make one more call.",
    shows_before="In a loop: `try` around forward and backward with `except ...: continue` (or "
    "pass), or a `continue` under a condition on the rank's own data, with a collective in the "
    "skipped part.",
    shows_during="From one sequence on, this rank's calls are those of the others shifted by one: "
    "the verdict shows the skipped call. If its calls all look the same, the swallowed exception "
    "in its loop identifies it.",
    shows_after="A timeout far from the fault, often at the end of the epoch; a loss curve that "
    "degrades before it. Sequence numbers differ by one between the rank and the others.",
    known_misses="The ring buffer of a trace file holds the last calls only: an older skip leaves "
    "a mismatch, but not its position. If all calls of the loop have the same line and signature, "
    "the step of the skip is unknown.",
    evidence_sources=(
        EvidenceSource.TRACE,
        EvidenceSource.SOURCE,
    ),
    treatment=Treatment.CODE,
    remedies=(
        by_hand(
            "Skip on all ranks or on none: share the failure first: `dist.all_reduce(failed, "
            "op=dist.ReduceOp.MAX)`."
        ),
        by_hand(
            "Do not swallow the exception: let it end the rank, and let the launcher restart "
            "the job."
        ),
        disruptive("Distrust everything trained since the skip; go back to an earlier checkpoint."),
        RESTART,
    ),
    sources=(
        "NVIDIA-NeMo/Automodel#2468",
        "pytorch/audio#3749",
        "ai2cm/ace#850",
        "NovaSky-AI/SkyRL#1370",
    ),
)
