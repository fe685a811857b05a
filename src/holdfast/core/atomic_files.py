"""Write files atomically."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from holdfast.core.errors import MissingFile
from holdfast.core.text import os_error_reason


def write_atomic(path: str | os.PathLike[str], content: bytes, *, durable: bool = True) -> None:
    """Write ``content`` to a temporary file next to ``path`` and rename it.

    Readers never see a partial file. Without ``durable``, a crash of the machine may lose it.

    A symbolic link is kept; a pipe or device is written directly. File modes follow the umask.

    Raises:
        MissingFile: the folder is missing or not writable, or the disk is full; the old file stays.
    """
    target = Path(os.path.realpath(path))
    try:
        if _is_stream(Path(path)):
            Path(path).write_bytes(content)
        else:
            _replace(target, content, durable=durable)
    except OSError as error:
        why = "its folder does not exist" if not target.parent.is_dir() else os_error_reason(error)
        raise MissingFile(path, why=why, next_step="choose a path in a writable folder") from error


def _is_stream(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _replace(target: Path, content: bytes, *, durable: bool) -> None:
    temporary = target.with_name(f".holdfast-{os.urandom(6).hex()}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
