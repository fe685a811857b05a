"""Turn a synced staging folder into a checkpoint with one rename. Runs on rank 0."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from holdfast.core import checkpoint_manifest
from holdfast.core.checkpoint_manifest import Manifest
from holdfast.training.checkpoint.storage.shard_files import sync_path

REMOVING = ".removing-"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def create_staging_folder(root: Path, step: int) -> Path:
    """Create a folder under ``root`` to write a checkpoint into. Raises OSError."""
    root.mkdir(parents=True, exist_ok=True)
    name = f"{checkpoint_manifest.folder_name(step)}-{secrets.token_hex(4)}"
    staged = root / f"{checkpoint_manifest.STAGING}{name}"
    staged.mkdir()
    return staged


def commit_checkpoint(staged: Path, manifest: Manifest) -> Path:
    """Write the manifest and rename the folder: a durable checkpoint from then on.

    A checkpoint of the same step (from before a rollback) is replaced atomically.

    Raises:
        OSError, MissingFile: nothing was committed.
    """
    root = staged.parent
    final = root / checkpoint_manifest.folder_name(manifest.step)
    checkpoint_manifest.write_manifest(staged, manifest)
    for folder in (*(path for path in staged.rglob("*") if path.is_dir()), staged):
        sync_path(folder)
    if final.exists():
        _exchange(staged, final)
        discard(staged)
    else:
        staged.rename(final)
    sync_path(root)
    return final


def discard(folder: Path) -> None:
    """Remove a folder that is not, or no longer, a checkpoint; renames it first."""
    renamed = folder.with_name(f"{REMOVING}{folder.name.lstrip('.')}-{secrets.token_hex(4)}")
    try:
        folder.rename(renamed)
    except OSError:
        renamed = folder
    shutil.rmtree(renamed, ignore_errors=True)


def find_leftovers(root: Path) -> Sequence[Path]:
    """Return what writers and removers that died left under ``root``."""
    try:
        return [
            path
            for path in root.iterdir()
            if path.name.startswith((checkpoint_manifest.STAGING, REMOVING))
        ]
    except OSError:
        return []


def _exchange(staged: Path, final: Path) -> None:
    """Swap two folders, atomically where kernel and file system support it."""
    libc = ctypes.CDLL(None, use_errno=True)
    status = -1
    if hasattr(libc, "renameat2"):  # glibc 2.28
        status = libc.renameat2(
            _AT_FDCWD, os.fsencode(staged), _AT_FDCWD, os.fsencode(final), _RENAME_EXCHANGE
        )
    if status == 0:
        return
    if hasattr(libc, "renameat2") and ctypes.get_errno() not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(final))
    intermediate = final.with_name(f"{REMOVING}{final.name}-{secrets.token_hex(4)}")
    final.rename(intermediate)
    staged.rename(final)
    intermediate.rename(staged)
