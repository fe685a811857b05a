"""Checkpoints that a framework wrote, proven whole by a manifest that is written when all of it is on the disk."""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from pathlib import Path

import torch
import torch.distributed as dist

from holdfast import manifest
from holdfast.errors import CheckpointUnreadable
from holdfast.manifest import Entry, Manifest
from holdfast.runtime import recorder

_log = logging.getLogger("holdfast.checkpoint")
#: checkpoint-500 of Hugging Face's Trainer, step-0000000500 of ours.
_NAME = re.compile(r"(?:checkpoint|step)-(\d+)\Z")


def seal(folder: Path, step: int, final: Path | None = None) -> None:
    """Prove a checkpoint whole; to be called on all ranks, when each has written its part of ``folder``.

    Rank 0 syncs every file, writes the manifest, and renames the folder to ``final``; the others wait.

    Raises:
        OSError: a file cannot be read or synced.
    """
    together = dist.is_available() and dist.is_initialized()
    if together:
        dist.barrier()
    if not together or dist.get_rank() == 0:
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != manifest.FILE)
        for path in (*files, *{path.parent for path in files}):
            _sync(path)
        entries = tuple(
            Entry(path=path.relative_to(folder).as_posix(), size=path.stat().st_size, xxh3=manifest.hash_of(path))
            for path in files
        )
        ranks = dist.get_world_size() if together else 1
        manifest.write(
            folder, Manifest(step=step, at=time.time(), ranks=ranks, torch=str(torch.__version__), files=entries)
        )
        _sync(folder)
        if final is not None:
            shutil.rmtree(final, ignore_errors=True)  # of a run that was to be forgotten
            folder.rename(final)
        _sync(folder.parent)
    if together:
        dist.barrier()
    recorder.saved(step, str(final or folder))


def newest(root: str | Path, before: int | None = None) -> Path | None:
    """The newest checkpoint under ``root`` (of a step below ``before``) whose every byte is as it was when sealed.

    Where a process group exists, rank 0 chooses for all.
    """
    together = dist.is_available() and dist.is_initialized()
    chosen = [_newest(Path(root), before) if not together or dist.get_rank() == 0 else None]
    if together:
        dist.broadcast_object_list(chosen)
    return chosen[0]


def _newest(root: Path, before: int | None) -> Path | None:
    found = [(int(match[1]), path) for path in _folders(root) if (match := _NAME.match(path.name))]
    for step, folder in sorted(found, reverse=True):
        if before is not None and step >= before:
            continue
        try:
            damage = next(iter(manifest.damages(folder, manifest.read(folder))), None)
        except CheckpointUnreadable as error:
            _log.warning("passed over: %s", error)
            continue
        if damage is None:
            return folder
        _log.warning("passed over: %s", CheckpointUnreadable(folder, why=f"{damage.path}: {damage.why}"))
    return None


def _folders(root: Path) -> list[Path]:
    try:
        return [path for path in root.iterdir() if path.is_dir()]
    except OSError:
        return []


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
