"""Reads of /proc that never raise: a text or :class:`Unknown`, and the line of /proc/<pid>/stat taken apart."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec

from holdfast.facts.ranks import Life
from holdfast.findings import Unknown

#: Where processes are described; tests stand another folder in its place.
PROC = Path("/proc")
TICKS_PER_S = float(os.sysconf("SC_CLK_TCK"))

_LIVES = {"R": Life.RUNNING, "S": Life.RUNNING, "I": Life.RUNNING, "T": Life.STOPPED, "t": Life.STOPPED,
          "D": Life.DISK, "Z": Life.DEAD, "X": Life.DEAD, "x": Life.DEAD}  # fmt: skip
_GONE = frozenset({errno.ENOENT, errno.ESRCH})


class Gone(Unknown, frozen=True):
    """The process, or the file, is not there (any more)."""


class Stat(msgspec.Struct, frozen=True):
    """What /proc/<pid>/stat says. ``exit_code`` is a zombie's wait status, ``started_ticks`` counts from boot.

    ``processor`` is where its main thread last ran.
    """

    pid: int
    name: str
    state: str
    parent: int
    cpu_ticks: int
    started_ticks: int
    exit_code: int
    processor: int = 0

    @property
    def life(self) -> Life:
        """The state letter in our words."""
        return _LIVES.get(self.state, Life.UNKNOWN)


def text(path: Path | str, limit_bytes: int = 1 << 20) -> str | Unknown:
    """The content of a small file of /proc or /sys; bytes that are no UTF-8 are replaced."""
    try:
        with Path(path).open("rb", buffering=0) as file:
            return _read(file.fileno(), limit_bytes).decode(errors="replace")
    except OSError as error:
        if error.errno in _GONE:
            return Gone(f"{path} is not there")
        return Unknown(f"{path} cannot be read: {error.strerror}")
    except ValueError as error:
        return Unknown(f"{path} cannot be read: {error}")


def _read(descriptor: int, limit_bytes: int) -> bytes:
    pieces, left = [], limit_bytes
    while left > 0 and (piece := os.read(descriptor, min(left, 1 << 16))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def stat(pid: int, proc: Path = PROC) -> Stat | Unknown:
    """The state of ``pid``: :class:`Gone` where there is no such process."""
    line = text(proc / str(pid) / "stat")
    if isinstance(line, Unknown):
        return line
    head, _, tail = line.rpartition(")")  # the name stands in parentheses and may hold any character
    fields = tail.split()
    try:
        return Stat(
            pid=pid,
            name=head.partition("(")[2],
            state=fields[0],
            parent=int(fields[1]),
            cpu_ticks=int(fields[11]) + int(fields[12]),
            started_ticks=int(fields[19]),
            processor=int(fields[36]) if len(fields) > 36 else 0,
            exit_code=int(fields[49]) if len(fields) > 49 else 0,
        )
    except (IndexError, ValueError):
        return Unknown(f"{proc}/{pid}/stat is not what Linux writes: {line[:80]!r}")


def same_process(pid: int, start_ticks: int | None, proc: Path = PROC) -> Stat | Unknown:
    """As :func:`stat`, but :class:`Gone` where ``pid`` now belongs to a process that began at another time."""
    seen = stat(pid, proc)
    if start_ticks and isinstance(seen, Stat) and seen.started_ticks != start_ticks:
        return Gone(f"process {pid} has ended, and its number belongs to another process now")
    return seen


def fields(path: Path | str) -> dict[str, str] | Unknown:
    """The lines ``name: value`` or ``name value`` of a file such as /proc/meminfo, by name."""
    content = text(path)
    if isinstance(content, Unknown):
        return content
    pairs = (line.replace(":", " ", 1).split(None, 1) for line in content.splitlines())
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def number(path: Path | str) -> int | Unknown:
    """The one number that a file holds."""
    content = text(path)
    if isinstance(content, Unknown):
        return content
    try:
        return int(content.split()[0])
    except (IndexError, ValueError):
        return Unknown(f"{path} holds no number: {content[:40]!r}")
