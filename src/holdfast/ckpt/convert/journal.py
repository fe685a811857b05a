"""Records which segments of a conversion are on disk, so that it can resume.

The first line identifies the conversion; a journal of another conversion is discarded. Every other
line is a segment that is on disk, with its CRC32.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from holdfast.ckpt.convert.layout import Segment
from holdfast.core.errors import CheckpointFailed

#: Bytes per sync; the next ones are written meanwhile.
SYNC_BYTES = 256 << 20
_SYNC_THREADS = 8


class _JournalLine(msgspec.Struct, frozen=True, array_like=True):
    path: str
    offset: int
    sum: int


class Journal:
    """The journal at ``path`` of files below ``target``; syncs in its own thread."""

    def __init__(self, path: Path, target: Path) -> None:
        self._path, self._target = path, target
        self._done: set[tuple[str, int]] = set()
        self._checksums: dict[tuple[str, int], int] = {}
        self._pending: list[tuple[Segment, int]] = []
        self._size = 0
        self._syncing = ThreadPoolExecutor(1, "journal")
        self._running: list[Future[None]] = []
        self._handle = -1

    def open(self, identity: str) -> bool:
        """Start, or resume if the journal has this ``identity``; return whether it resumes.

        Raises:
            CheckpointFailed: another process is writing this target.
        """
        self._handle = os.open(
            self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666
        )
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise CheckpointFailed(
                f"the conversion to {self._target}",
                why="another process is writing to it",
                next_step="wait until it has finished",
            ) from error
        first, *lines = self._path.read_bytes().split(b"\n")
        if first != identity.encode():
            self.restart(identity)
            return False
        for line in lines[:-1]:  # the last one is empty or truncated
            entry = msgspec.json.decode(line, type=_JournalLine)
            self._done.add((entry.path, entry.offset))
            self._checksums[entry.path, entry.offset] = entry.sum
        if lines and lines[-1]:
            os.ftruncate(self._handle, os.fstat(self._handle).st_size - len(lines[-1]))
        return bool(self._done)

    def restart(self, identity: str) -> None:
        """Discard all recorded segments."""
        self._done.clear()
        os.ftruncate(self._handle, 0)
        os.write(self._handle, identity.encode() + b"\n")

    def close(self) -> None:
        """Close the journal."""
        self._syncing.shutdown()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def has(self, stretch: Segment) -> bool:
        """Return whether the segment is on disk."""
        return (stretch.path, stretch.offset) in self._done

    def crc_of(self, stretch: Segment) -> int:
        """Return the CRC32 of a segment that is on disk."""
        return self._checksums[stretch.path, stretch.offset]

    def add(self, stretch: Segment, crc: int) -> None:
        """Record a written segment. Raises OSError: earlier data could not be synced."""
        self._pending.append((stretch, crc))
        self._checksums[stretch.path, stretch.offset] = crc
        self._size += stretch.size
        if self._size >= SYNC_BYTES:
            self.flush()

    def flush(self) -> None:
        """Start syncing what was written. Raises OSError: earlier data could not be synced."""
        for future in [item for item in self._running if item.done()]:
            self._running.remove(future)
            future.result()
        self._running.append(self._syncing.submit(self._sync_and_record, self._pending))
        self._pending, self._size = [], 0

    def sync(self, paths: Collection[str]) -> None:
        """Start syncing these files."""
        self._running.append(self._syncing.submit(self._sync, tuple(paths)))

    def wait(self) -> None:
        """Wait until everything is on disk. Raises OSError: syncing failed."""
        while self._running:
            self._running.pop(0).result()

    def _sync_and_record(self, pending: Sequence[tuple[Segment, int]]) -> None:
        self._sync({stretch.path for stretch, _ in pending})
        lines = [_JournalLine(stretch.path, stretch.offset, crc) for stretch, crc in pending]
        os.write(self._handle, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))

    def _sync(self, paths: Collection[str]) -> None:
        """Sync files in parallel, which lets the disk combine many small ones."""
        paths_to_sync = [self._target / path if path else self._target for path in paths]
        with ThreadPoolExecutor(_SYNC_THREADS, "sync") as pool:
            for _ in pool.map(sync_path, paths_to_sync):
                pass


def sync_path(path: Path) -> None:
    """Sync a file, or the entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
