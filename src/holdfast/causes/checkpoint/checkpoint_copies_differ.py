"""CKPT011 checkpoint-copies-differ."""

from __future__ import annotations

from holdfast.causes.remedies import BEFORE, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

CHECKPOINT_COPIES_DIFFER = Cause(
    code="CKPT011",
    name="checkpoint-copies-differ",
    summary="Values that a checkpoint stores twice differ between the two copies.",
    what_happens="The copies come from two saves (one rank wrote, another was killed before it "
    "did), ranks had drifted apart before they saved, or bytes of one copy changed on the disk. A "
    "loader takes one of the two, depending on the rank and the number of ranks.",
    shows_before="Replicas that were never compared; saves into a folder that already holds one.",
    shows_during="Nothing: each copy is a complete file.",
    shows_after="The model after resuming depends on the number of ranks that load it; tied "
    "weights are no longer equal; 16-bit weights do not match the optimizer's fp32 weights.",
    known_misses="Tied weights are known only if the format records them. A checkpoint that "
    "stores everything once cannot show it.",
    evidence_sources=(EvidenceSource.CHECKPOINT,),
    remedies=(
        BEFORE,
        by_hand(
            "Find the ranks that drifted, and when: compare replicas while training "
            "(`holdfast.loop`)."
        ),
    ),
    sources=(
        "torch 2.13.0 DCP and deepspeed 0.19.8, measured",
        "deepspeed: mp_rank_00_model_states.pt",
    ),
)
