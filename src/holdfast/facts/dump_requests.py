"""Asks a living rank's torch for a dump of its flight recorder, and picks the dump up later; nothing here waits.

Where TORCH_NCCL_DEBUG_INFO_PIPE_FILE is set, the first NCCL group of a process makes the pipe ``<stem><rank>.pipe``,
and a thread of C++ looks into it once a second; whatever is written makes it write a dump to ``<place><rank>``, in
place and not by renaming (torch 2.13: ``DumpPipe``, ``HeartbeatMonitor::runLoop``, ``DebugInfoWriter``). The process is
not stopped. The dump has Python frames in it, for which torch takes the GIL for a moment: a rank that never lets go of
it does not answer.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from glob import escape
from pathlib import Path

import msgspec

from holdfast.errors import DumpTruncated, DumpUnreadable
from holdfast.facts import flight_recorder
from holdfast.facts.flight_recorder import Dump

#: torch looks into the pipe once a second, and needs a second or so for the first dump.
ANSWER_LIMIT_S = 6.0
#: Pauses between requests, each twice the one before, as a dump costs the rank a moment and a file of half a megabyte.
FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 10.0


class DumpPlace(msgspec.Struct, frozen=True):
    """Absolute beginnings of the names of pipe and dump: what the two variables of torch hold for this rank."""

    pipe: str
    dump: str


class _Request(msgspec.Struct, frozen=True):
    """A request under way: when it was made (monotonic s), the dump that will come, and what lay there before."""

    made_s: float
    dump: Path
    before: tuple[int, int, int] | None


class DumpRequests:
    """Requests to one rank, one at a time. ``dump`` is the newest answer (in ``file``), ``trouble`` why none."""

    def __init__(self, pid: int, place: DumpPlace) -> None:
        self._pid = pid
        self._place = place
        self._request: _Request | None = None
        self._pause_s = FIRST_PAUSE_S
        self._next_s = 0.0
        self.dump: Dump | None = None
        self.file: Path | None = None
        self.trouble = ""

    def ask(self) -> None:
        """Ask for a dump, unless one was asked for a moment ago. Never waits, and never raises."""
        now = time.monotonic()
        if self._request is not None or now < self._next_s:
            return
        pipe, number = self._pipe()
        if pipe is None:
            self.trouble = "its torch does not listen for requests of the flight recorder"
            return
        dump = Path(self._place.dump + number)
        request = _Request(now, dump, _identity(dump))
        if _write(pipe):
            self._request = request
            self._next_s = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        else:
            self.trouble = "its torch does not take requests of the flight recorder"

    def read(self) -> None:
        """Pick up the answer to the request under way, if it is there and whole."""
        request = self._request
        if request is None:
            return
        identity = _identity(request.dump)
        if identity is not None and identity != request.before:
            try:
                self.dump, self.trouble, self._request = flight_recorder.read(request.dump), "", None
                self.file = request.dump
            except DumpTruncated:
                pass  # it is still being written
            except DumpUnreadable as error:
                self.trouble, self._request = str(error), None
        if self._request is not None and time.monotonic() - request.made_s > ANSWER_LIMIT_S:
            self.trouble = f"its flight recorder gave no dump within {ANSWER_LIMIT_S:.0f} s"
            self._request = None

    def advanced(self) -> None:
        """Take note that the rank went on: a dump from before says nothing any more, and the pauses are short again."""
        self.dump, self.trouble, self._request = None, "", None
        self._pause_s, self._next_s = FIRST_PAUSE_S, 0.0

    def _pipe(self) -> tuple[Path | None, str]:
        """The pipe at which this very process listens, and the rank in its name, as torch counts.

        A stem may be shared by several processes, and the pipes of dead ones stay behind.

        Links are read, not followed: to follow one to a file on a dead network mount would never end.
        """
        open_files = set()
        with suppress(OSError):
            for descriptor in os.scandir(f"/proc/{self._pid}/fd"):
                with suppress(OSError):
                    open_files.add(str(Path(descriptor.path).readlink()))
        stem = Path(self._place.pipe + "_")  # a stem may end in a slash
        beginning = stem.name[:-1]
        for pipe in sorted(Path(os.path.realpath(stem.parent)).glob(f"{escape(beginning)}*.pipe")):
            if str(pipe) in open_files and pipe.is_fifo():
                return pipe, pipe.name[len(beginning) : -len(".pipe")]
        return None, ""


def _write(pipe: Path) -> bool:
    """Write to the pipe without waiting for a reader or for room; False where that cannot be."""
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # nobody reads, or it is gone
        return False
    try:
        return os.write(descriptor, b"dump\n") > 0
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _identity(file: Path) -> tuple[int, int, int] | None:
    """What tells one writing of a file from the next; None where there is no file."""
    try:
        seen = file.stat()
    except OSError:
        return None
    return seen.st_ino, seen.st_mtime_ns, seen.st_size
