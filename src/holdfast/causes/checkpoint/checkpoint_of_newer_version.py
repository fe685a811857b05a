"""CKPT007 checkpoint-of-newer-version."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

CHECKPOINT_OF_NEWER_VERSION = Cause(
    code="CKPT007",
    name="checkpoint-of-newer-version",
    summary="A newer holdfast wrote the checkpoint, in a format that this one cannot read.",
    what_happens="Part of the cluster, or a job that was moved, has an older installation than "
    "the one that saved.",
    shows_before="Hosts or images with different versions of holdfast.",
    shows_during="Loading skips the checkpoint and reports it; a folder that was requested by "
    "name is rejected.",
    shows_after="`it is of the form 'holdfast/checkpoint/…'`; a job that continues from an older "
    "checkpoint, or starts anew.",
    known_misses="The tensors themselves are in torch's format: a torch too old for them fails "
    "with its own message.",
    evidence_sources=(
        EvidenceSource.TRACE,
        EvidenceSource.CHECKPOINT,
    ),
    remedies=(
        by_hand(
            "Install the same holdfast on all hosts, at least as new as the one that saved.",
            "pip install --upgrade holdfast",
        ),
        by_hand(
            "Read the tensors without holdfast: `torch.distributed.checkpoint.load(state, "
            "checkpoint_id=FOLDER)`."
        ),
    ),
    sources=("holdfast.core.checkpoint_manifest",),
)
