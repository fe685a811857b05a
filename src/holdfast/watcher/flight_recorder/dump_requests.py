"""Requests flight-recorder dumps from a living rank's torch, and reads them later; never blocks.

If TORCH_NCCL_DEBUG_INFO_PIPE_FILE is set, the first NCCL group of a process creates the pipe
``<stem><rank>.pipe``, and a C++ thread polls it once per second; any input makes it write a dump to
``<location><rank>``, in place and not by renaming (torch 2.13: ``DumpPipe``,
``HeartbeatMonitor::runLoop``, ``DebugInfoWriter``). The process is not stopped. The dump contains
Python frames, for which torch takes the GIL briefly: a rank that never releases it does not
respond.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from glob import escape
from pathlib import Path

import msgspec

from holdfast.core.errors import DumpTruncated, DumpUnreadable
from holdfast.watcher.agent_messages import DumpLocation
from holdfast.watcher.flight_recorder import dump_reader
from holdfast.watcher.flight_recorder.dump_reader import FlightRecorderDump

#: torch polls the pipe once per second, and takes about a second for the first dump.
RESPONSE_LIMIT_S = 6.0
#: Pause between requests, doubled each time: a dump costs the rank time and a file of 0.5 MB.
FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 10.0


class _PendingDump(msgspec.Struct, frozen=True):
    """A pending request: when it was sent (monotonic s), the dump, the file's old version."""

    sent_s: float
    dump: Path
    before: tuple[int, int, int] | None


class DumpRequests:
    """Requests to one rank, one at a time.

    ``dump`` is the newest dump, read from ``file``; ``error`` says why there is none.
    """

    def __init__(self, pid: int, location: DumpLocation) -> None:
        self._pid = pid
        self._location = location
        self._pending: _PendingDump | None = None
        self._pause_s = FIRST_PAUSE_S
        self._next_s = 0.0
        self.dump: FlightRecorderDump | None = None
        self.file: Path | None = None
        self.error = ""

    def request(self) -> None:
        """Request a dump, unless one was requested recently. Never blocks or raises."""
        now = time.monotonic()
        if self._pending is not None or now < self._next_s:
            return
        pipe, number = self._find_pipe()
        if pipe is None:
            self.error = "its torch has not opened the flight recorder's pipe"
            return
        dump = Path(self._location.dump + number)
        pending = _PendingDump(now, dump, _file_version(dump))
        if _write(pipe):
            self._pending = pending
            self._next_s = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        else:
            self.error = "its torch does not read the flight recorder's pipe"

    def read(self) -> None:
        """Read the requested dump if it is complete."""
        pending = self._pending
        if pending is None:
            return
        version = _file_version(pending.dump)
        if version is not None and version != pending.before:
            try:
                self.dump, self.error, self._pending = dump_reader.read(pending.dump), "", None
                self.file = pending.dump
            except DumpTruncated:
                pass  # it is still being written
            except DumpUnreadable as error:
                self.error, self._pending = str(error), None
        if self._pending is not None and time.monotonic() - pending.sent_s > RESPONSE_LIMIT_S:
            self.error = f"its flight recorder wrote no dump within {RESPONSE_LIMIT_S:.0f} s"
            self._pending = None

    def discard(self) -> None:
        """Discard an outdated dump after the rank advanced, and reset the pauses."""
        self.dump, self.error, self._pending = None, "", None
        self._pause_s, self._next_s = FIRST_PAUSE_S, 0.0

    def _find_pipe(self) -> tuple[Path | None, str]:
        """Return the pipe that this process has opened, and the rank number in its name.

        Several processes may share a stem, and pipes of dead processes remain. Links are read and
        not followed, because following a link on a dead network mount may block forever.
        """
        open_files = set()
        with suppress(OSError):
            for descriptor in os.scandir(f"/proc/{self._pid}/fd"):
                with suppress(OSError):
                    open_files.add(str(Path(descriptor.path).readlink()))
        stem = Path(self._location.pipe + "_")  # a stem may end in a slash
        prefix = stem.name[:-1]
        for pipe in sorted(Path(os.path.realpath(stem.parent)).glob(f"{escape(prefix)}*.pipe")):
            if str(pipe) in open_files and pipe.is_fifo():
                return pipe, pipe.name[len(prefix) : -len(".pipe")]
        return None, ""


def _write(pipe: Path) -> bool:
    """Write to the pipe without blocking; return False if it has no reader or is full."""
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.write(descriptor, b"dump\n") > 0
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _file_version(file: Path) -> tuple[int, int, int] | None:
    """Return inode, modification time and size, which differ after a write; None without a file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
