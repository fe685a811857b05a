"""CKPT012 checkpoint-tensor-incomplete."""

from __future__ import annotations

from holdfast.causes.remedies import BEFORE, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

CHECKPOINT_TENSOR_INCOMPLETE = Cause(
    code="CKPT012",
    name="checkpoint-tensor-incomplete",
    summary="The shards of a tensor do not add up to its shape.",
    what_happens="Some of its elements are in no file, or a shard exceeds its bounds: a shard is "
    "missing, shards of runs with different numbers of ranks are in one folder, or an index "
    "belongs to another save.",
    shows_before="A folder that is reused with another number of ranks, without being emptied.",
    shows_during="Loaders that concatenate shards either raise, or read the wrong elements.",
    shows_after="`size mismatch`, a ragged last dimension, or weights that are partly of another "
    "run.",
    known_misses="Shards that add up by chance are not found. Shards of formats that mix boxes "
    "and flat ranges are not checked.",
    evidence_sources=(EvidenceSource.CHECKPOINT,),
    remedies=(
        by_hand(
            "Find the missing shards, or the folder in which they were left, and copy the "
            "whole save again."
        ),
        BEFORE,
    ),
    sources=(
        "torch.distributed.checkpoint.metadata",
        "deepspeed: zero/stage3.py, partitions and padding",
    ),
)
