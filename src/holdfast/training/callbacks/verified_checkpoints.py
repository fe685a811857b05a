"""Seal a framework's checkpoint with a manifest, once all of it is on the disk, and verify it."""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from pathlib import Path

import torch
import torch.distributed as dist

from holdfast import recorder
from holdfast.core import checkpoint_manifest
from holdfast.core.checkpoint_manifest import Manifest, ManifestEntry
from holdfast.core.errors import CheckpointUnreadable

_log = logging.getLogger("holdfast.checkpoint")
#: checkpoint-500 of Hugging Face's Trainer, step-0000000500 of ours.
_NAME = re.compile(r"(?:checkpoint|step)-(\d+)\Z")


def seal(folder: Path, step: int, final: Path | None = None) -> None:
    """Write a checkpoint's manifest; call it on all ranks once each has written its part.

    Rank 0 syncs every file, writes the manifest, and renames the folder to ``final``; the others
    wait.

    Raises:
        OSError: a file cannot be read or synced.
    """
    is_distributed = dist.is_available() and dist.is_initialized()
    if is_distributed:
        dist.barrier()
    if not is_distributed or dist.get_rank() == 0:
        files = sorted(
            path
            for path in folder.rglob("*")
            if path.is_file() and path.name != checkpoint_manifest.FILE
        )
        for path in (*files, *{path.parent for path in files}):
            _sync(path)
        entries = tuple(
            ManifestEntry(
                path=path.relative_to(folder).as_posix(),
                size=path.stat().st_size,
                xxh3=checkpoint_manifest.hash_file(path),
            )
            for path in files
        )
        ranks = dist.get_world_size() if is_distributed else 1
        checkpoint_manifest.write_manifest(
            folder,
            Manifest(
                step=step, at=time.time(), ranks=ranks, torch=str(torch.__version__), files=entries
            ),
        )
        _sync(folder)
        if final is not None:
            shutil.rmtree(final, ignore_errors=True)  # of a discarded run
            folder.rename(final)
        _sync(folder.parent)
    if is_distributed:
        dist.barrier()
    recorder.record_saved_step(step, str(final or folder))


def newest(root: str | Path, before: int | None = None) -> Path | None:
    """Return the newest valid checkpoint under ``root`` (of a step below ``before``).

    Every byte must match its manifest. In a process group, rank 0 chooses for all.
    """
    is_distributed = dist.is_available() and dist.is_initialized()
    chosen = [_newest(Path(root), before) if not is_distributed or dist.get_rank() == 0 else None]
    if is_distributed:
        dist.broadcast_object_list(chosen)
    return chosen[0]


def _newest(root: Path, before: int | None) -> Path | None:
    candidates = [
        (int(match[1]), path) for path in _folders(root) if (match := _NAME.match(path.name))
    ]
    for step, folder in sorted(candidates, reverse=True):
        if before is not None and step >= before:
            continue
        try:
            damage = next(
                iter(
                    checkpoint_manifest.find_damage(
                        folder, checkpoint_manifest.read_manifest(folder)
                    )
                ),
                None,
            )
        except CheckpointUnreadable as error:
            _log.warning("skipped: %s", error)
            continue
        if damage is None:
            return folder
        _log.warning(
            "skipped: %s", CheckpointUnreadable(folder, why=f"{damage.path}: {damage.why}")
        )
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
