"""Where a run leaves its traces: logs, incidents and, while it runs, one box a rank in shared memory.

    holdfast-runs/20260107-141530-3fa2/     run.json, logs/, incidents/<n>/, watcher.log
    /dev/shm/holdfast-20260107-141530-3fa2/ rank<k>.box, agent (who made the folder)

The boxes of a healthy run are deleted, those of a failed one go to its incident; none stays in shared memory.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast import blackbox
from holdfast.errors import BadValue
from holdfast.report.files import write_whole

SHM = Path("/dev/shm")  # noqa: S108 - that is where boxes belong
#: Of the room that the boxes need, as much again is left to the data loaders.
ROOM = 2.0


class Owner(msgspec.Struct, frozen=True):
    """The process that a folder in shared memory belongs to: its id, start in clock ticks, and namespace of ids."""

    pid: int
    started: int
    namespace: str

    @classmethod
    def me(cls) -> Owner:
        """This process."""
        return cls(os.getpid(), blackbox.process_start_ticks(os.getpid()), _namespace())

    def is_gone(self) -> bool:
        """Whether the process has ended; never of one in another namespace (a container that shares /dev/shm)."""
        return self.namespace == _namespace() and blackbox.process_start_ticks(self.pid) != self.started


class RunFolder:
    """The folder of one run of this node, made when this is made.

    Raises:
        BadValue: the folder cannot be made.
    """

    def __init__(self, base: Path, *, workers: int, records: int, shm: Path = SHM) -> None:
        self.name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        self.path = base / self.name
        self.logs = self.path / "logs"
        self.incidents = self.path / "incidents"
        try:
            self.logs.mkdir(parents=True)
            self.incidents.mkdir()
        except OSError as error:
            why = f"{base}: {(error.strerror or str(error)).lower()}"
            raise BadValue("--run-dir", why=why, next_step="name a folder that can be written to") from error
        remove_stale(shm)
        #: Why the boxes do not lie in shared memory; empty where they do.
        self.trouble = _shortage(shm, workers * box_bytes(records) * ROOM)
        self.boxes = self.path / "boxes"
        if not self.trouble:
            self._take(shm / f"holdfast-{self.name}")

    def _take(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700)
            take_over(folder)
            self.boxes = folder
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            self.trouble = f"{folder.parent}: {(error.strerror or str(error)).lower()}"

    def box(self, rank: int) -> Path:
        """Where the box of ``rank`` lies while the rank lives."""
        return (self.boxes / f"rank{rank}.box").absolute()

    def write(self, name: str, content: bytes) -> None:
        """Write a file of the run, whole or not at all."""
        write_whole(self.path / name, content)

    def new_incident(self) -> Path:
        """The folder of one more incident."""
        for number in range(1_000_000):
            folder = self.incidents / str(number)
            if not folder.exists():
                folder.mkdir(parents=True)
                break
        return folder

    def keep_boxes(self, into: Path) -> str:
        """Move the boxes into a folder, unless copies lie there already. Returns why that failed, or nothing."""
        return keep_boxes(self.boxes, into)

    def clear_boxes(self) -> None:
        """Delete the boxes and what lies beside them."""
        clear_boxes(self.boxes)

    def close(self) -> None:
        """Leave nothing in shared memory. May be called more than once."""
        shutil.rmtree(self.boxes, ignore_errors=True)


def take_over(folder: Path) -> None:
    """Make this process the owner of a folder in shared memory, which is removed once its owner is gone."""
    (folder / "agent").write_bytes(msgspec.json.encode(Owner.me()))


def keep_boxes(boxes: Path, into: Path) -> str:
    """As :meth:`RunFolder.keep_boxes`, for whoever is left when the agent is not."""
    trouble = ""
    for box in sorted(boxes.glob("rank*.box")):
        kept = into / box.name
        try:
            into.mkdir(parents=True, exist_ok=True)
            if not kept.exists():
                shutil.move(box, kept)
        except OSError as error:
            trouble = f"{kept}: {(error.strerror or str(error)).lower()}"
    clear_boxes(boxes)
    return trouble


def clear_boxes(boxes: Path) -> None:
    """Delete the boxes in a folder and what lies beside them."""
    for leftover in boxes.glob("rank*"):
        with suppress(OSError):
            leftover.unlink()


def box_bytes(records: int) -> int:
    """The size of a box with a ring of so many records."""
    areas = blackbox.GROUPS * blackbox.GROUP_BYTES + blackbox.NOTES_BYTES
    return blackbox.HEADER_BYTES + areas + records * blackbox.RECORD_BYTES


def remove_stale(shm: Path) -> None:
    """Remove what runs left in shared memory whose agent was killed; nothing that somebody may still use."""
    for folder in shm.glob("holdfast-*"):
        with suppress(OSError, msgspec.DecodeError):
            owner = msgspec.json.decode((folder / "agent").read_bytes(), type=Owner)
            if owner.is_gone() and folder.stat().st_uid == os.getuid():
                shutil.rmtree(folder)


def _shortage(shm: Path, wanted_bytes: float) -> str:
    try:
        state = os.statvfs(shm)
    except OSError as error:
        return f"{shm}: {(error.strerror or str(error)).lower()}"
    free = state.f_bavail * state.f_frsize
    wanted = f"{shm} has {free / 1e6:.1f} MB left, {wanted_bytes / 1e6:.1f} MB are wanted"
    return "" if free >= wanted_bytes else wanted


def _namespace() -> str:
    with suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""
