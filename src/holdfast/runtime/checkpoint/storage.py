"""Pieces to files and back, in torch.distributed.checkpoint's own form; bytes are hashed while they are written.

Each piece is what ``torch.save`` makes of a tensor, one after the other in one file a rank (``__<rank>_0.distcp``), so
that torch's own ``dcp.load`` reads them.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import xxhash
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import ReadItem, WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from holdfast.manifest import Entry, hash_of
from holdfast.runtime.checkpoint.unpickling import read_index

INDEX = ".metadata"


class HashedFile:
    """A new file that knows the hash of what was written into it. Every method raises OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._hash = xxhash.xxh3_128()
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                os.fsync(self._handle)
        finally:
            os.close(self._handle)

    def write(self, data: Any) -> int:
        """Append all of ``data``; the number of its bytes."""
        view = memoryview(data).cast("B")
        self._hash.update(view)
        left = view
        while left:
            left = left[os.write(self._handle, left) :]
        self.size += len(view)
        return len(view)

    def tell(self) -> int:
        """Bytes written so far."""
        return self.size

    def flush(self) -> None:
        """Nothing is kept back."""

    @property
    def entry(self) -> Entry:
        """What the manifest says of the file."""
        return Entry(path=self.path.name, size=self.size, xxh3=self._hash.hexdigest())


def write_pieces(
    path: Path, items: Sequence[WriteItem], data: Callable[[WriteItem], Any]
) -> tuple[Entry, list[WriteResult]]:
    """Write the pieces one after the other into a new file, synced; where each of them stands in it. Raises OSError."""
    results = []
    with HashedFile(path) as file:
        for item in items:
            begin, piece = file.size, data(item)
            if isinstance(piece, io.BytesIO):
                file.write(piece.getbuffer())
            else:
                _write_tensor(piece, file)
            place = _StorageInfo(path.name, begin, file.size - begin)
            results.append(WriteResult(index=item.index, size_in_bytes=file.size - begin, storage_data=place))
    return file.entry, results


def _write_tensor(tensor: torch.Tensor, file: HashedFile) -> None:
    torch.save(tensor, file)  # type: ignore[arg-type]


def write_index(folder: Path, index: Metadata, results: list[list[WriteResult]]) -> Entry:
    """Write torch's index of all pieces, synced. Raises OSError."""
    FileSystemWriter(folder).finish(index, results)
    path = folder / INDEX
    return Entry(path=INDEX, size=path.stat().st_size, xxh3=hash_of(path))


def write_bytes(path: Path, data: bytes) -> Entry:
    """Write one new file, synced. Raises OSError."""
    with HashedFile(path) as file:
        file.write(data)
    return file.entry


def sync_folder(folder: Path) -> None:
    """Make sure that the names in a folder outlive a loss of power. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Reader(FileSystemReader):
    """torch's reader, that takes nothing from a file but tensors."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """The index. Raises CheckpointUnreadable."""
        folder = Path(self.path)
        with (folder / INDEX).open("rb") as stream:
            return read_index(stream, folder)


class LoadPlanner(DefaultLoadPlanner):
    """torch's planner, that unpickles what is no tensor with ``weights_only`` (torch's own does not, 2.4 to 2.13)."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Take a piece that is no tensor."""
        found = torch.load(value, map_location="cpu", weights_only=True)
        self._set(read_item.dest_index.fqn, found)

    def _set(self, name: str, value: Any) -> None:
        target: Any = self.original_state_dict
        path = self.mappings[name] if self.flatten_state_dict else (name,)
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = value
