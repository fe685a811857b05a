"""CKPT005 checkpoint-unfinished."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

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
    evidence_sources=(EvidenceSource.LOG, EvidenceSource.CHECKPOINT),
    signals=(
        LogSignal(
            name="metadata-missing",
            tier=Tier.DEVICE,
            confidence=0.65,
            sentence="a checkpoint folder has no metadata: its save was not completed",
            patterns=(
                (
                    r"No such file or directory: '[^']{1,300}/(?:\.metadata|metadata\.json"
                    r"|common\.pt)'"
                ),
                r"[Uu]nable to find latest file at \S{1,200}",
            ),
            examples=(
                (
                    "[rank2]: FileNotFoundError: [Errno 2] No such file or directory: "
                    "'/mnt/out/step_500/.metadata'"
                ),
            ),
        ),
    ),
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
