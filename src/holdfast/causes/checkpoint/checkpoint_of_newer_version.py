"""CKPT007 checkpoint-of-newer-version."""

from __future__ import annotations

from holdfast.core.findings import Cause, Remedy, Safety

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
    remedies=(
        Remedy(
            text="Install the same holdfast on all hosts, at least as new as the one that saved.",
            command="pip install --upgrade holdfast",
            safety=Safety.BY_HAND,
        ),
        Remedy(
            text="Read the tensors without holdfast: `torch.distributed.checkpoint.load(state, "
            "checkpoint_id=FOLDER)`."
        ),
    ),
    sources=("holdfast.core.checkpoint_manifest",),
)
