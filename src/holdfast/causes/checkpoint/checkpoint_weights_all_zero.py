"""CKPT010 checkpoint-weights-all-zero."""

from __future__ import annotations

from holdfast.causes.remedies import BEFORE, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

CHECKPOINT_WEIGHTS_ALL_ZERO = Cause(
    code="CKPT010",
    name="checkpoint-weights-all-zero",
    summary="A weight, or the part of it that one rank wrote, consists of zeros only.",
    what_happens="A shard was never filled: memory that was allocated and not written, a file "
    "that kept its length and lost its pages in a crash of the machine, a gather in which one "
    "rank's part was missing. Converters cause it as well: torch's consolidation of Hugging Face "
    "shards writes every tensor without dimensions as 0.0.",
    shows_before="Files that are not synced (fsync) before the job reports them as saved.",
    shows_during="Nothing.",
    shows_after="The model's output is poor or useless; the loss after resuming is far higher "
    "than before.",
    known_misses="Weights that start as zeros and were not trained yet (the second matrix of LoRA, "
    "an output projection) look the same: without contrary evidence (second moments, the same "
    "weight of other layers), such a weight is a note. Inside a tensor, zeros are found if they "
    "fill a page of 4,096 bytes of a file without checksums; pruned rows and blocks are notes.",
    evidence_sources=(EvidenceSource.CHECKPOINT,),
    remedies=(
        BEFORE,
        by_hand(
            "If it was converted, convert it again from the source: `holdfast ckpt convert` "
            "reads back what it wrote and compares it with the source."
        ),
    ),
    sources=(
        "torch 2.13.0: distributed/checkpoint/_consolidate_hf_safetensors.py, measured",
        "ext4(5): delalloc",
    ),
)
