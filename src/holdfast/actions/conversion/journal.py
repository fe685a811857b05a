"""What is written and synced of a conversion, kept beside it: one that was cut off goes on from there.

The first line says what is converted, and how; one that was begun for anything else is not gone on with. Every other
line is a stretch that is on the disk, with its CRC32.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from holdfast.actions.conversion.layout import Stretch
from holdfast.errors import CheckpointFailed

#: Bytes that are written before they are synced and remembered, while the next ones are written.
SYNCED_TOGETHER = 256 << 20
_SYNCING = 8


class _Line(msgspec.Struct, frozen=True, array_like=True):
    path: str
    offset: int
    sum: int


class Journal:
    """The journal at ``path`` of files below ``target``. Syncing goes on in its own thread until :meth:`settle`."""

    def __init__(self, path: Path, target: Path) -> None:
        self._path, self._target = path, target
        self._done: set[tuple[str, int]] = set()
        self._sums: dict[tuple[str, int], int] = {}
        self._pending: list[tuple[Stretch, int]] = []
        self._size = 0
        self._syncing = ThreadPoolExecutor(1, "journal")
        self._running: list[Future[None]] = []
        self._handle = -1

    def open(self, identity: str) -> bool:
        """Begin, or go on where it is of this ``identity``; gives whether it does. Only one process may.

        Raises:
            CheckpointFailed: another process is writing this target.
        """
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise CheckpointFailed(f"the conversion to {self._target}", why="another process is writing it",
                                   next_step="wait for that one") from error  # fmt: skip
        first, *lines = self._path.read_bytes().split(b"\n")
        if first != identity.encode():
            self.restart(identity)
            return False
        for line in lines[:-1]:  # the last one is empty, or was cut off
            found = msgspec.json.decode(line, type=_Line)
            self._done.add((found.path, found.offset))
            self._sums[found.path, found.offset] = found.sum
        if lines and lines[-1]:
            os.ftruncate(self._handle, os.fstat(self._handle).st_size - len(lines[-1]))
        return bool(self._done)

    def restart(self, identity: str) -> None:
        """Forget everything."""
        self._done.clear()
        os.ftruncate(self._handle, 0)
        os.write(self._handle, identity.encode() + b"\n")

    def close(self) -> None:
        """Let go of it."""
        self._syncing.shutdown()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def has(self, stretch: Stretch) -> bool:
        """It is on the disk already."""
        return (stretch.path, stretch.offset) in self._done

    def sum_of(self, stretch: Stretch) -> int:
        """Its CRC32, once it is there."""
        return self._sums[stretch.path, stretch.offset]

    def add(self, stretch: Stretch, crc: int) -> None:
        """It was written. Raises OSError: what was written before could not be synced."""
        self._pending.append((stretch, crc))
        self._sums[stretch.path, stretch.offset] = crc
        self._size += stretch.size
        if self._size >= SYNCED_TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Begin to sync what was written, and to remember it. Raises OSError: what was written before could not be."""
        for future in [each for each in self._running if each.done()]:
            self._running.remove(future)
            future.result()
        self._running.append(self._syncing.submit(self._remember, self._pending))
        self._pending, self._size = [], 0

    def sync(self, paths: Collection[str]) -> None:
        """Begin to sync these files."""
        self._running.append(self._syncing.submit(self._sync, tuple(paths)))

    def settle(self) -> None:
        """Wait until everything is on the disk. Raises OSError: it cannot be."""
        while self._running:
            self._running.pop(0).result()

    def _remember(self, pending: Sequence[tuple[Stretch, int]]) -> None:
        self._sync({stretch.path for stretch, _ in pending})
        lines = [_Line(stretch.path, stretch.offset, crc) for stretch, crc in pending]
        os.write(self._handle, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))

    def _sync(self, paths: Collection[str]) -> None:
        """Many small files together, which the disk does in one go."""
        places = [self._target / path if path else self._target for path in paths]
        with ThreadPoolExecutor(_SYNCING, "sync") as pool:
            for _ in pool.map(synced, places):
                pass


def synced(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
