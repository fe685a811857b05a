"""From a staged folder to a checkpoint: one rename, after all that is in it was synced. Rank 0 does this."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from holdfast import manifest
from holdfast.manifest import Manifest
from holdfast.runtime.checkpoint.storage import sync_folder

REMOVING = ".removing-"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def stage(root: Path, step: int) -> Path:
    """A new folder under ``root`` to write a checkpoint into. Raises OSError."""
    root.mkdir(parents=True, exist_ok=True)
    staged = root / f"{manifest.STAGING}{manifest.name_of(step)}-{secrets.token_hex(4)}"
    staged.mkdir()
    return staged


def declare(staged: Path, found: Manifest) -> Path:
    """Write the manifest and give the folder its name; it is a checkpoint from then on, and outlives a loss of power.

    A checkpoint of the same step (from before the job went back to an earlier one) leaves its name in the same moment.

    Raises:
        OSError, MissingFile: nothing was declared.
    """
    root = staged.parent
    final = root / manifest.name_of(found.step)
    manifest.write(staged, found)
    for folder in (*(path for path in staged.rglob("*") if path.is_dir()), staged):
        sync_folder(folder)
    if final.exists():
        _exchange(staged, final)
        discard(staged)
    else:
        staged.rename(final)
    sync_folder(root)
    return final


def discard(folder: Path) -> None:
    """Remove a folder that is no checkpoint, or is to be none any more: it loses its name first."""
    away = folder.with_name(f"{REMOVING}{folder.name.lstrip('.')}-{secrets.token_hex(4)}")
    try:
        folder.rename(away)
    except OSError:
        away = folder
    shutil.rmtree(away, ignore_errors=True)


def leftovers(root: Path) -> Sequence[Path]:
    """What writers and removers that died have left under ``root``."""
    try:
        return [path for path in root.iterdir() if path.name.startswith((manifest.STAGING, REMOVING))]
    except OSError:
        return []


def _exchange(one: Path, other: Path) -> None:
    """Let two folders change names in one moment, where the kernel and file system can; else in two."""
    libc = ctypes.CDLL(None, use_errno=True)
    done = -1
    if hasattr(libc, "renameat2"):  # glibc 2.28
        done = libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if done == 0:
        return
    if hasattr(libc, "renameat2") and ctypes.get_errno() not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(other))
    between = other.with_name(f"{REMOVING}{other.name}-{secrets.token_hex(4)}")
    other.rename(between)
    one.rename(other)
    between.rename(one)
