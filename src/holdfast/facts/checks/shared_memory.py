"""The size of /dev/shm, and the room in it: NCCL, gloo's neighbours and data loaders keep what they share there."""

from __future__ import annotations

import os

from holdfast.facts.checks import Place, Seen, fact
from holdfast.findings import Fact, Unknown

FOLDER = "/dev/shm"  # noqa: S108 - the place itself, not a file in it
_MIB = 1 << 20


class SharedMemory(Seen, frozen=True, kw_only=True):
    """In bytes."""

    size_bytes: int | Unknown
    free_bytes: int | Unknown

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        if isinstance(self.size_bytes, Unknown) or isinstance(self.free_bytes, Unknown):
            return (fact("shared memory", self.size_bytes, FOLDER),)
        text = f"{self.size_bytes // _MIB:,} MiB, {self.free_bytes // _MIB:,} MiB free"
        return (fact("shared memory", text, FOLDER),)


def look(place: Place) -> SharedMemory:
    """Ask the file system that is mounted there."""
    try:
        seen = os.statvfs(place.path(FOLDER))
    except OSError as error:
        why = Unknown(f"{FOLDER}: {error.strerror}")
        return SharedMemory(size_bytes=why, free_bytes=why)
    return SharedMemory(size_bytes=seen.f_blocks * seen.f_frsize, free_bytes=seen.f_bavail * seen.f_frsize)
