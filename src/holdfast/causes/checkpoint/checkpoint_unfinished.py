"""CKPT005 checkpoint-unfinished."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

CHECKPOINT_UNFINISHED = Cause(
    code="CKPT005",
    name="checkpoint-unfinished",
    summary="A folder that was to become a checkpoint was never completed and is not a checkpoint.",
    what_happens="The job died or was stopped while it saved, or the disk was full. holdfast "
    "writes into a folder named `.staging-…`, and renames it to that of a checkpoint after all "
    "bytes were synced, so its leftovers are never mistaken for one. Other tools write in place "
    "and leave a folder that looks complete.",
    shows_before="Nothing. Space for fewer than two checkpoints makes it likely.",
    shows_during="A folder `.staging-…` next to the checkpoints; if a save is running, it is "
    "being written.",
    shows_after="A `.staging-…` folder without a writer, or a `step-…` folder without a manifest.",
    known_misses="From outside, the staging folder of a job that still runs looks the same.",
    evidence_sources=(EvidenceSource.CHECKPOINT,),
    remedies=(
        automatic(
            "Nothing: the next save of a job with this folder removes it, and loading ignores it."
        ),
        by_hand(
            "If it takes space and no job writes here, remove it.", "rm -r CHECKPOINTS/.staging-*"
        ),
    ),
    sources=("holdfast.core.checkpoint_manifest", "rename(2), fsync(2)"),
)
