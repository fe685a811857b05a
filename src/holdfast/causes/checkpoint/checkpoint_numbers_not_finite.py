"""CKPT009 checkpoint-numbers-not-finite."""

from __future__ import annotations

from holdfast.causes.remedies import BEFORE, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

CHECKPOINT_NUMBERS_NOT_FINITE = Cause(
    code="CKPT009",
    name="checkpoint-numbers-not-finite",
    summary="Weights or optimizer states in a checkpoint are NaN or infinite.",
    what_happens="The loss or a gradient overflowed, or a bad device wrote garbage, and the step "
    "was taken anyway. Every value computed with such a weight is NaN too, so resuming from this "
    "checkpoint repeats the failure at once. An infinite optimizer moment freezes its weight "
    "permanently.",
    shows_before="fp16 without a loss scaler, a learning rate without warm-up, no check of the "
    "loss before saving.",
    shows_during="The loss is NaN from one step on, while checkpoints continue to be written.",
    shows_after="NaN from the first step after resuming; every loader accepts the file without a "
    "warning.",
    known_misses="Buffers that hold infinities on purpose (attention masks) are recognized by "
    "containing only infinities and zeros. Huge values are reported if they are few and beyond "
    "1e12 (fp16: 16,384), as a flipped exponent bit causes them.",
    evidence_sources=(EvidenceSource.CHECKPOINT,),
    remedies=(
        BEFORE,
        by_hand("Skip the step, and the save, while the loss or the gradient norm is not finite."),
    ),
    sources=("IEEE 754", "torch.amp.GradScaler", "holdfast.loop"),
)
