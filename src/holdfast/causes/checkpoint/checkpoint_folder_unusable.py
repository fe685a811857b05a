"""CKPT004 checkpoint-folder-unusable."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

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
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.HOST,
        EvidenceSource.CHECKPOINT,
    ),
    signals=(
        LogSignal(
            name="folder-unwritable",
            tier=Tier.DEVICE,
            confidence=0.65,
            sentence="the checkpoint folder cannot be written",
            patterns=(
                (
                    "(?:PermissionError|Permission denied|Read-only file "
                    "system).{0,200}(?:checkpoint|ckpt)"
                ),
                "Read-only file system: '",
                r"RuntimeError: Parent directory \S{0,200} does not exist",
                (
                    r"RuntimeError: File \S{0,300}(?:checkpoint|ckpt|\.pth?)\S{0,100} "
                    "cannot be opened"
                ),
            ),
            examples=(
                (
                    "[rank0]: PermissionError: [Errno 13] Permission denied: "
                    "'/checkpoints/step_100/model.pt'"
                ),
                ("[rank1]: OSError: [Errno 30] Read-only file system: '/data/out/step_9'"),
                (
                    "[rank3]: RuntimeError: Parent directory "
                    "/data/base_checkpoints/d20 does not exist."
                ),
                ("RuntimeError: File my_out/checkpoints/checkpoint_0.pt cannot be opened."),
            ),
            counter_examples=(
                "INFO: Parent directory /out/run7 does not exist, creating it",
                (
                    "Could not cache non-existence of file. Will ignore error and "
                    "continue. Error: [Errno 13] Permission denied: "
                    "'/cache/hub/.no_exist/a.json'"
                ),
            ),
        ),
        LogSignal(
            name="ephemeral-storage",
            tier=Tier.OUTSIDE,
            confidence=0.85,
            sentence="the pod exceeded its local storage and was evicted",
            patterns=(
                ("low on resource: ephemeral-storage|ephemeral local storage usage exceeds"),
            ),
            examples=(
                (
                    "Warning  Evicted  pod/fit-3  The node was low on resource: "
                    "ephemeral-storage. Container train was using 90Gi"
                ),
                (
                    "Warning  Evicted  pod/fit-3  Pod ephemeral local storage usage "
                    "exceeds the total limit of containers 50Gi."
                ),
            ),
        ),
    ),
    log_examples=(
        "saving the checkpoint of step 40\nOSError: [Errno 28] No space left on device",
        (
            "saving the checkpoint of step 40\n"
            "[rank0]: RuntimeError: [enforce fail at inline_container.cc:600] . unexpected "
            "pos 640 vs 512"
        ),
    ),
    remedies=(
        by_hand("Use a folder on the shared storage that every host has mounted."),
        by_hand("Delete old checkpoints, or keep fewer."),
    ),
    sources=("statvfs(3)", "tmpfs(5)"),
)
