"""DATA004 sampler-epoch-not-set."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

SAMPLER_EPOCH_NOT_SET = Cause(
    code="DATA004",
    name="sampler-epoch-not-set",
    summary="set_epoch is never called on a shuffling DistributedSampler: all epochs have the "
    "same order.",
    what_happens="The sampler shuffles by its seed plus the epoch, which stays 0 until set_epoch "
    "is called. Each rank sees the same samples in the same order in every epoch, and never those "
    "of other ranks. Training continues with worse results.",
    shows_before="A loop over epochs around a loop over a loader with a DistributedSampler, "
    "without set_epoch.",
    shows_during="Nothing stops. The first batch of each epoch is the same.",
    shows_after="Validation is worse than with one process, without a visible reason.",
    known_misses="Accelerate, Lightning and Transformers call set_epoch themselves; loaders "
    "passed to them are not reported. Samplers of other libraries are not recognized.",
    evidence_sources=(EvidenceSource.SOURCE,),
    remedies=(
        by_hand(
            "Before each epoch: `loader.sampler.set_epoch(epoch)`; holdfast.loop calls it "
            "automatically."
        ),
        by_hand(
            "If the order must stay the same, disable shuffling: `DistributedSampler(..., "
            "shuffle=False)`."
        ),
    ),
    sources=("torch.utils.data.distributed.DistributedSampler", "huggingface/transformers#4398"),
)
