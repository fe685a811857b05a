"""What lies in a folder of checkpoints: which are there, and what is not as it was written."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from holdfast import manifest
from holdfast.errors import CheckpointUnreadable, CheckpointVersion
from holdfast.findings import Unknown
from holdfast.manifest import Damage, Manifest

#: Names that folders have before they are checkpoints, and after.
_PASSING = (manifest.STAGING, ".removing-")


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One folder with the name of a checkpoint. ``found`` is its manifest, or None and ``why`` it has no valid one.

    ``newer`` says that it is of a form that this holdfast does not know; ``damages`` is Unknown where only sizes, or
    nothing, was held against the manifest.
    """

    path: str
    step: int
    found: Manifest | None = None
    why: str = ""
    newer: bool = False
    has_manifest: bool = True
    damages: tuple[Damage, ...] = ()
    contents: bool | Unknown = True


class Unfinished(msgspec.Struct, frozen=True):
    """A staged or removed folder: its path, its bytes, and the seconds since something in it was written last."""

    path: str
    size: int
    quiet_s: float


class Checkpoints(msgspec.Struct, frozen=True):
    """What lies under ``root``, the latest step first. ``unseen`` says what could not be looked at."""

    root: str
    seen: tuple[Seen, ...] = ()
    unfinished: tuple[Unfinished, ...] = ()
    unseen: str = ""


def look(root: Path, *, contents: bool = True) -> Checkpoints:
    """Look at every checkpoint under ``root``: sizes alone, or each byte too (``contents``), at the disk's speed."""
    try:
        passing = [path for path in root.iterdir() if path.name.startswith(_PASSING)]
    except OSError as error:
        return Checkpoints(str(root), unseen=f"{root}: {(error.strerror or str(error)).lower()}")
    seen = tuple(look_at(folder, contents=contents) for folder in manifest.newest_first(root))
    return Checkpoints(str(root), seen, tuple(_unfinished(path) for path in sorted(passing)))


def look_at(folder: Path, *, contents: bool = True) -> Seen:
    """Look at one checkpoint."""
    step = manifest.step_of(folder) or 0
    try:
        found = manifest.read(folder)
    except CheckpointUnreadable as error:
        there = (folder / manifest.FILE).exists()
        newer = isinstance(error, CheckpointVersion)
        return Seen(path=str(folder), step=step, why=error.why, newer=newer, has_manifest=there)
    damages = tuple(manifest.damages(folder, found, contents=contents))
    looked: bool | Unknown = True if contents else Unknown("sizes alone were compared")
    return Seen(path=str(folder), step=step, found=found, damages=damages, contents=looked)


def _unfinished(folder: Path) -> Unfinished:
    size, latest = 0, 0.0
    for path in (folder, *folder.rglob("*")):
        try:
            about = path.stat()
        except OSError:  # it is being removed
            continue
        size += 0 if path is folder else about.st_size
        latest = max(latest, about.st_mtime)
    return Unfinished(str(folder), size, max(time.time() - latest, 0.0))
