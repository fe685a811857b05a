"""CKPT004 checkpoint-folder-unusable."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.findings import Cause

CHECKPOINT_FOLDER_UNUSABLE = Cause(
    code="CKPT004",
    name="checkpoint-folder-unusable",
    summary="The checkpoint folder is not writable, has too little space, or does not outlive the "
    "job.",
    what_happens="A path that is not mounted on this host, a file system that is read-only, full, "
    "without free inodes, or in memory. The first checkpoint fails after hours of training.",
    shows_before="The path does not exist or is on an overlay or tmpfs; `df` and `df -i` show "
    "little left.",
    shows_during="Nothing until the first save. Then the writing rank raises, and the others wait "
    "in the barrier.",
    shows_after="`No space left on device`, `Read-only file system`, `Permission denied` on one "
    "rank; a timeout on the others; or a checkpoint that disappeared with its container.",
    known_misses="Free bytes do not show quotas of a user or project. The job may run as another "
    "user than the check.",
    remedies=(
        by_hand("Use a folder on the shared storage that every host has mounted."),
        by_hand("Delete old checkpoints, or keep fewer."),
    ),
    sources=("statvfs(3)", "tmpfs(5)"),
)
