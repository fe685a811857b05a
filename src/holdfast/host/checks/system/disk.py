"""The file system of the checkpoint folder: existence, permissions, free space, write speed.

The speed is measured with one file of at most 64 MiB, written for at most one second and flushed.
The file is unlinked from the start, so that nothing remains however this process ends.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import time
from pathlib import Path

from holdfast.core.findings import Fact, Unknown
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.processes import proc

MAX_TEST_BYTES, TEST_LIMIT_S = 64 << 20, 1.0
_CHUNK = 4 << 20
_GIB = 1 << 30
#: File systems of the kernel, which hold no files of users.
_KERNEL_KINDS = frozenset(
    {"cgroup", "cgroup2", "configfs", "debugfs", "devpts", "proc", "securityfs", "sysfs", "tracefs"}
)
#: How the kernel writes a space in a path: ``\040``.
_ESCAPED = re.compile(r"\\([0-7]{3})")


class DiskResult(CheckResult, frozen=True, kw_only=True):
    """``folder``: absolute path of the folder (``is_named``: by the user).

    ``at``: its nearest existing parent. ``obstacle``: why nothing can be written there. ``speed``
    in bytes/s, None if not measured.
    """

    folder: str
    is_named: bool
    at: str
    kind: str = ""
    obstacle: str = ""
    size: int | Unknown
    free: int | Unknown
    free_files: int | None = None
    speed: float | Unknown | None = None

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        if isinstance(self.size, Unknown) or isinstance(self.free, Unknown):
            return (check_fact(self.folder, self.size, "statvfs"),)
        text = f"{self.free / _GIB:.1f} of {self.size / _GIB:.1f} GiB free" + (
            f", {self.kind}" if self.kind else ""
        )
        facts = [check_fact(self.folder, text, f"statvfs of {self.at}")]
        facts += [check_fact("obstacle", self.obstacle, self.at)] if self.obstacle else []
        if self.speed is not None:
            known = (
                self.speed
                if isinstance(self.speed, Unknown)
                else f"{self.speed / 1e6:.0f} MB/s (with fsync)"
            )
            facts.append(check_fact("write speed", known, f"unnamed file in {self.at}"))
        return tuple(facts)


def inspect(context: CheckContext) -> DiskResult:
    """Query the file system.

    Write to it only if a folder was named and this is no recorded tree.
    """
    path = context.checkpoints or "."
    is_named = context.checkpoints is not None
    folder = os.path.abspath(path)  # noqa: PTH100 - removes `..` without following links
    at = _nearest_existing(context.path(folder) if path.startswith("/") else Path(folder))
    try:
        status = os.statvfs(at)
    except OSError as error:
        why = Unknown(f"{folder}: {error.strerror}")
        return DiskResult(folder=folder, is_named=is_named, at=str(at), size=why, free=why)
    kind = _filesystem_type(context, at)
    obstacle = _write_obstacle(at, status, kind)
    free = status.f_bavail * status.f_frsize
    measured = is_named and not obstacle and context.root == "/" and free > 2 * MAX_TEST_BYTES
    return DiskResult(
        folder=folder,
        is_named=is_named,
        at=str(at),
        kind=kind,
        obstacle=obstacle,
        size=status.f_blocks * status.f_frsize,
        free=free,
        free_files=status.f_favail if status.f_files else None,
        speed=_measure_write_speed(at) if measured else None,
    )


def _nearest_existing(folder: Path) -> Path:
    """Return the folder or its nearest existing parent (Path.exists raises without permission)."""
    candidates = (folder, *folder.parents)
    return next((path for path in candidates if os.path.exists(path)), Path("/"))  # noqa: PTH110


def _write_obstacle(at: Path, status: os.statvfs_result, kind: str) -> str:
    if not stat.S_ISDIR(at.stat().st_mode):
        return f"{at} is not a directory"
    if status.f_flag & os.ST_RDONLY:
        return f"the file system of {at} is read-only"
    if kind in _KERNEL_KINDS:
        return f"{at} is on {kind}, which stores no files"
    return "" if os.access(at, os.W_OK | os.X_OK) else f"no write permission for {at}"


def _filesystem_type(context: CheckContext, at: Path) -> str:
    """Return the file-system type of the longest mount point.

    Of several mounts on it the last one counts.
    """
    lines = proc.read_text(context.path("/proc/self/mountinfo"))
    inside = (
        Path("/", at.relative_to(context.root))
        if context.root != "/" and at.is_relative_to(context.root)
        else at.resolve()
    )
    best, kind = -1, ""
    for line in () if isinstance(lines, Unknown) else lines.splitlines():
        before, _, after = line.partition(" - ")
        point = Path(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), before.split()[4]))
        if inside.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split()[0]
    return kind


def _measure_write_speed(at: Path) -> float | Unknown:
    chunk = os.urandom(_CHUNK)  # compressing file systems would not store zeros
    try:
        with tempfile.TemporaryFile(dir=at, buffering=0) as file:
            started, written = time.monotonic(), 0
            while written < MAX_TEST_BYTES and time.monotonic() - started < TEST_LIMIT_S:
                written += file.write(chunk)
            os.fsync(file.fileno())
            return written / (time.monotonic() - started)
    except OSError as error:
        return Unknown(f"write to {at} failed: {error.strerror}")
