"""Names the disk in the error of a save that found it full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from holdfast.core.errors import CheckpointFailed

_FULL = {errno.ENOSPC: "is full", errno.EDQUOT: "has no quota left"}


def name_full_disk(subject: str, root: Path, error: BaseException) -> BaseException:
    """Return ``error``; as CheckpointFailed with folder, mount point and space on a full disk."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _FULL:
            why = f"{os.strerror(cause.errno)}: the disk of {root} {_FULL[cause.errno]}"
            return CheckpointFailed(subject, why=f"{why} ({_describe_space(root)})")
        cause = cause.__cause__
    return error


def _describe_space(root: Path) -> str:
    mount = root
    while not os.path.ismount(mount):
        mount = mount.parent
    try:
        about = os.statvfs(root)
    except OSError as error:
        return f"mounted at {mount}; {error.strerror}"
    free, size = (blocks * about.f_frsize / 1e9 for blocks in (about.f_bavail, about.f_blocks))
    return f"mounted at {mount}, {free:.3g} GB of {size:.3g} GB free"
