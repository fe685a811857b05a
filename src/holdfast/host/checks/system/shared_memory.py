"""Size and free space of /dev/shm, where NCCL, gloo and data loaders keep shared memory."""

from __future__ import annotations

import os

from holdfast.core.findings import Fact, Unknown
from holdfast.host.checks import CheckContext, CheckResult, check_fact

SHM_PATH = "/dev/shm"  # noqa: S108 - the mount point, not a file in it
_MIB = 1 << 20


class SharedMemoryResult(CheckResult, frozen=True, kw_only=True):
    """Total and free size in bytes."""

    size_bytes: int | Unknown
    free_bytes: int | Unknown

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        if isinstance(self.size_bytes, Unknown) or isinstance(self.free_bytes, Unknown):
            return (check_fact("shared memory", self.size_bytes, SHM_PATH),)
        text = f"{self.size_bytes // _MIB:,} MiB, {self.free_bytes // _MIB:,} MiB free"
        return (check_fact("shared memory", text, SHM_PATH),)


def inspect(context: CheckContext) -> SharedMemoryResult:
    """Query the file system mounted at /dev/shm."""
    try:
        status = os.statvfs(context.path(SHM_PATH))
    except OSError as error:
        why = Unknown(f"{SHM_PATH}: {error.strerror}")
        return SharedMemoryResult(size_bytes=why, free_bytes=why)
    return SharedMemoryResult(
        size_bytes=status.f_blocks * status.f_frsize, free_bytes=status.f_bavail * status.f_frsize
    )
