"""Keep compiled pattern databases in the user's cache folder: compiling takes over a second.

A file begins with the key of what it was compiled from. Only a regular file of this user that no
other user can read or write is loaded, because a forged database could crash the process;
Hyperscan checks version, processor and checksum. Without a usable file or folder, nothing is kept.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from holdfast.core import settings

#: Larger files are not read.
MAX_BYTES = 64 << 20
_OWN_MODE = 0o600


def load(name: str, key: bytes) -> bytes | None:
    """Return the database of this name if it was compiled from ``key``; None without one."""
    with (
        suppress(OSError, RuntimeError),  # RuntimeError: no home folder
        open(_path(name), "rb", buffering=0, opener=_open_without_following) as file,
    ):
        status = os.fstat(file.fileno())
        is_own = status.st_uid == os.geteuid() and status.st_mode == stat.S_IFREG | _OWN_MODE
        if is_own and status.st_size <= MAX_BYTES and file.read(len(key)) == key:
            return file.read()
    return None


def store(name: str, key: bytes, database: bytes) -> None:
    """Keep a database that was compiled from ``key``."""
    with suppress(OSError, RuntimeError):
        path = _path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWN_MODE)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(key)
                file.write(database)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _open_without_following(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _path(name: str) -> Path:
    return settings.cache_folder() / f"log-patterns-{name}.db"
