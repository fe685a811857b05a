"""The file system into which checkpoints go: is it there, writable, with room, and how fast is it?

The speed is that of one file of at most 64 MiB, written and flushed in at most a second. It has no name in the folder
from its first byte on, so that nothing is left of it however this process ends.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import time
from pathlib import Path

from holdfast.facts import proc
from holdfast.facts.checks import Place, Seen, fact
from holdfast.findings import Fact, Unknown

MOST_BYTES, LIMIT_S = 64 << 20, 1.0
_PIECE = 4 << 20
_GIB = 1 << 30
#: How the kernel writes a blank in a path: ``\040``.
_ESCAPED = re.compile(r"\\([0-7]{3})")


class Disk(Seen, frozen=True, kw_only=True):
    """``folder``: that was named (if none was, ``asked`` is False), from /; ``at`` is its nearest that exists.

    ``obstacle`` says why nothing can be written there. ``speed`` in bytes a second, None where it was not measured.
    """

    folder: str
    asked: bool
    at: str
    kind: str = ""
    obstacle: str = ""
    size: int | Unknown
    free: int | Unknown
    free_files: int | None = None
    speed: float | Unknown | None = None

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        if isinstance(self.size, Unknown) or isinstance(self.free, Unknown):
            return (fact(self.folder, self.size, "statvfs"),)
        text = f"{self.free / _GIB:.1f} of {self.size / _GIB:.1f} GiB free" + (f", {self.kind}" if self.kind else "")
        told = [fact(self.folder, text, f"statvfs of {self.at}")]
        told += [fact("obstacle", self.obstacle, self.at)] if self.obstacle else []
        if self.speed is not None:
            known = self.speed if isinstance(self.speed, Unknown) else f"{self.speed / 1e6:.0f} MB/s, flushed"
            told.append(fact("write speed", known, f"a file in {self.at}, without a name"))
        return tuple(told)


def look(place: Place) -> Disk:
    """Ask the file system, and write to it where a folder was named and this is no recorded tree."""
    asked = place.checkpoints or "."
    folder = os.path.abspath(asked)  # noqa: PTH100 - without following links, and without a place for `..`
    at = _nearest(place.path(folder) if asked.startswith("/") else Path(folder))
    try:
        seen = os.statvfs(at)
    except OSError as error:
        why = Unknown(f"{folder}: {error.strerror}")
        return Disk(folder=folder, asked=place.checkpoints is not None, at=str(at), size=why, free=why)
    obstacle = _obstacle(at, seen)
    measured = place.checkpoints is not None and not obstacle and place.root == "/"
    return Disk(
        folder=folder,
        asked=place.checkpoints is not None,
        at=str(at),
        kind=_kind(place, at),
        obstacle=obstacle,
        size=seen.f_blocks * seen.f_frsize,
        free=seen.f_bavail * seen.f_frsize,
        free_files=seen.f_favail if seen.f_files else None,
        speed=_speed(at) if measured and seen.f_bavail * seen.f_frsize > 2 * MOST_BYTES else None,
    )


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest above it that can be seen (Path.exists raises where it may not look)."""
    return next((each for each in (folder, *folder.parents) if os.path.exists(each)), Path("/"))  # noqa: PTH110


def _obstacle(at: Path, seen: os.statvfs_result) -> str:
    if not stat.S_ISDIR(at.stat().st_mode):
        return f"{at} is no folder"
    if seen.f_flag & os.ST_RDONLY:
        return f"the file system of {at} is read-only"
    return "" if os.access(at, os.W_OK | os.X_OK) else f"{at} may not be written to"


def _kind(place: Place, at: Path) -> str:
    """The type of the file system, by the longest mount point; the last mount on one point counts."""
    lines = proc.text(place.path("/proc/self/mountinfo"))
    inside = (
        Path("/", at.relative_to(place.root)) if place.root != "/" and at.is_relative_to(place.root) else at.resolve()
    )
    best, kind = -1, ""
    for line in () if isinstance(lines, Unknown) else lines.splitlines():
        before, _, after = line.partition(" - ")
        point = Path(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), before.split()[4]))
        if inside.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split()[0]
    return kind


def _speed(at: Path) -> float | Unknown:
    piece = os.urandom(_PIECE)  # zeros would be kept as nothing by file systems that compress
    try:
        with tempfile.TemporaryFile(dir=at, buffering=0) as file:
            begun, written = time.monotonic(), 0
            while written < MOST_BYTES and time.monotonic() - begun < LIMIT_S:
                written += file.write(piece)
            os.fsync(file.fileno())
            return written / (time.monotonic() - begun)
    except OSError as error:
        return Unknown(f"nothing could be written to {at}: {error.strerror}")
