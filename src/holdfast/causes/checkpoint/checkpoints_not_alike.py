"""CKPT013 checkpoints-not-alike."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

CHECKPOINTS_NOT_ALIKE = Cause(
    code="CKPT013",
    name="checkpoints-not-alike",
    summary="Two compared checkpoints have different contents.",
    what_happens="Tensors are in one of them only, or have another shape, dtype or other values: "
    "another step, another run, a lossy conversion, or the same run twice without the same seeds "
    "and kernels.",
    shows_before="Nothing; whether they should be equal depends on the comparison.",
    shows_during="Nothing.",
    shows_after="`holdfast ckpt diff` names what differs, by patterns of names, and by how much.",
    known_misses="A renamed tensor appears as one missing and one additional tensor, unless the "
    "names differ only by a wrapper's prefix.",
    evidence_sources=(EvidenceSource.CHECKPOINT,),
    remedies=(
        by_hand("If one was converted from the other, convert it again, without `--no-verify`."),
        by_hand(
            "If both are of one run, compare the steps at which they were saved.",
            "holdfast ckpt inspect CHECKPOINT",
        ),
    ),
    sources=("holdfast.ckpt.verify.tensor_comparison",),
)
