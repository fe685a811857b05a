"""Reads /proc without raising (text or :class:`Unknown`), and parses /proc/<pid>/stat."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec

from holdfast.core.findings import Unknown
from holdfast.core.rank_table import ProcessState

#: The proc file system; tests pass another folder.
PROC = Path("/proc")
TICKS_PER_S = float(os.sysconf("SC_CLK_TCK"))

_STATES = {
    "R": ProcessState.RUNNING,
    "S": ProcessState.RUNNING,
    "I": ProcessState.RUNNING,
    "T": ProcessState.STOPPED,
    "t": ProcessState.STOPPED,
    "D": ProcessState.DISK,
    "Z": ProcessState.DEAD,
    "X": ProcessState.DEAD,
    "x": ProcessState.DEAD,
}
_GONE = frozenset({errno.ENOENT, errno.ESRCH})


class ProcessGone(Unknown, frozen=True):
    """The process or file does not exist (any more)."""


class ProcessStat(msgspec.Struct, frozen=True):
    """What /proc/<pid>/stat says.

    ``exit_code`` is a zombie's wait status, ``started_ticks`` counts from boot. ``processor`` is
    where its main thread last ran.
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
    def life(self) -> ProcessState:
        """The process state of the kernel's letter."""
        return _STATES.get(self.state, ProcessState.UNKNOWN)


def read_text(path: Path | str, limit_bytes: int = 1 << 20) -> str | Unknown:
    """Return the content of a small file of /proc or /sys; invalid UTF-8 is replaced."""
    try:
        with Path(path).open("rb", buffering=0) as file:
            return _read(file.fileno(), limit_bytes).decode(errors="replace")
    except OSError as error:
        if error.errno in _GONE:
            return ProcessGone(f"{path} is not there")
        return Unknown(f"{path} cannot be read: {error.strerror}")
    except ValueError as error:
        return Unknown(f"{path} cannot be read: {error}")


def _read(descriptor: int, limit_bytes: int) -> bytes:
    chunks, left = [], limit_bytes
    while left > 0 and (chunk := os.read(descriptor, min(left, 1 << 16))):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def read_stat(pid: int, proc: Path = PROC) -> ProcessStat | Unknown:
    """Return the state of ``pid``; :class:`Gone` if there is no such process."""
    line = read_text(proc / str(pid) / "stat")
    if isinstance(line, Unknown):
        return line
    head, _, tail = line.rpartition(")")  # the name in parentheses may contain any character
    fields = tail.split()
    try:
        return ProcessStat(
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
        return Unknown(f"{proc}/{pid}/stat has an unexpected format: {line[:80]!r}")


def same_process(pid: int, start_ticks: int | None, proc: Path = PROC) -> ProcessStat | Unknown:
    """Like :func:`read_stat`, but :class:`Gone` if another process has the ``pid`` now."""
    stat = read_stat(pid, proc)
    if start_ticks and isinstance(stat, ProcessStat) and stat.started_ticks != start_ticks:
        return ProcessGone(f"process {pid} has ended, and its pid now belongs to another process")
    return stat


def read_fields(path: Path | str) -> dict[str, str] | Unknown:
    """Return the lines ``name: value`` or ``name value`` of a file (/proc/meminfo) by name."""
    content = read_text(path)
    if isinstance(content, Unknown):
        return content
    pairs = (line.replace(":", " ", 1).split(None, 1) for line in content.splitlines())
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def read_number(path: Path | str) -> int | Unknown:
    """Return the number that a file contains."""
    content = read_text(path)
    if isinstance(content, Unknown):
        return content
    try:
        return int(content.split()[0])
    except (IndexError, ValueError):
        return Unknown(f"{path} does not contain a number: {content[:40]!r}")
