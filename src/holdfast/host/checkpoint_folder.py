"""Inspects a checkpoint folder: its checkpoints, and differences from their manifests."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from holdfast.core import checkpoint_manifest
from holdfast.core.checkpoint_manifest import Damage, Manifest
from holdfast.core.errors import CheckpointUnreadable, CheckpointVersion
from holdfast.core.findings import Unknown
from holdfast.core.text import os_error_reason

#: Name prefixes of staged folders, and of folders that are being removed.
_TEMPORARY = (checkpoint_manifest.STAGING, ".removing-")


class InspectedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One folder with the name of a checkpoint. ``found``: its manifest.

    None if it has no valid one (``why``). ``newer``: its format is newer than this holdfast
    supports. ``contents`` is Unknown if only sizes were compared with the manifest.
    """

    path: str
    step: int
    found: Manifest | None = None
    why: str = ""
    newer: bool = False
    has_manifest: bool = True
    damages: tuple[Damage, ...] = ()
    contents: bool | Unknown = True


class UnfinishedFolder(msgspec.Struct, frozen=True):
    """A staged or half-removed folder: path, size in bytes, seconds since the last write."""

    path: str
    size: int
    quiet_s: float


class CheckpointFolder(msgspec.Struct, frozen=True):
    """The checkpoints under ``root``, the latest step first.

    ``unseen``: why the folder could not be read.
    """

    root: str
    checkpoints: tuple[InspectedCheckpoint, ...] = ()
    unfinished: tuple[UnfinishedFolder, ...] = ()
    unobserved: str = ""


def inspect_folder(root: Path, *, contents: bool = True) -> CheckpointFolder:
    """Compare every checkpoint under ``root`` with its manifest: sizes, and ``contents``."""
    try:
        temporary = [path for path in root.iterdir() if path.name.startswith(_TEMPORARY)]
    except OSError as error:
        return CheckpointFolder(str(root), unobserved=f"{root}: {os_error_reason(error)}")
    checkpoints = tuple(
        inspect_checkpoint(folder, contents=contents)
        for folder in checkpoint_manifest.folders_newest_first(root)
    )
    unfinished = tuple(_inspect_unfinished(path) for path in sorted(temporary))
    return CheckpointFolder(str(root), checkpoints, unfinished)


def inspect_checkpoint(folder: Path, *, contents: bool = True) -> InspectedCheckpoint:
    """Compare one checkpoint with its manifest."""
    step = checkpoint_manifest.step_of_folder(folder) or 0
    try:
        manifest = checkpoint_manifest.read_manifest(folder)
    except CheckpointUnreadable as error:
        return InspectedCheckpoint(
            path=str(folder),
            step=step,
            why=error.why,
            newer=isinstance(error, CheckpointVersion),
            has_manifest=(folder / checkpoint_manifest.FILE).exists(),
        )
    return InspectedCheckpoint(
        path=str(folder),
        step=step,
        found=manifest,
        damages=tuple(checkpoint_manifest.find_damage(folder, manifest, contents=contents)),
        contents=True if contents else Unknown("only sizes were compared"),
    )


def _inspect_unfinished(folder: Path) -> UnfinishedFolder:
    size, latest = 0, 0.0
    for path in (folder, *folder.rglob("*")):
        try:
            status = path.stat()
        except OSError:  # it is being removed
            continue
        size += 0 if path is folder else status.st_size
        latest = max(latest, status.st_mtime)
    return UnfinishedFolder(str(folder), size, max(time.time() - latest, 0.0))
