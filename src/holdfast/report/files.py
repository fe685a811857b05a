"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from holdfast.errors import MissingFile


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write ``content`` to a temporary file beside ``path`` and rename it, so that no reader meets half of it.

    A symbolic link keeps pointing where it did; a pipe or a device is written to directly. Modes follow the umask.

    Raises:
        MissingFile: the folder is missing or closed to us, or the disk is full; the old file is left as it was.
    """
    target = Path(os.path.realpath(path))
    try:
        if _is_stream(Path(path)):
            Path(path).write_bytes(content)
        else:
            _replace(target, content)
    except OSError as error:
        why = "its folder does not exist" if not target.parent.is_dir() else (error.strerror or str(error)).lower()
        raise MissingFile(path, why=why, next_step="give the path of a file in a folder that can be written") from error


def _is_stream(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _replace(target: Path, content: bytes) -> None:
    beside = target.with_name(f".holdfast-{secrets.token_hex(6)}.tmp")
    try:
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
