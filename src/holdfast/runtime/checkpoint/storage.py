"""Pieces to files and back, in torch.distributed.checkpoint's own form; bytes are hashed while they are written.

Each piece is what ``torch.save`` makes of a tensor, one after the other in a rank's own files (``__<rank>_0.distcp``),
so that torch's ``dcp.load`` reads them. Two things are faster than torch's own way, and fall back to it: tensors are
packed without torch's CRC32 (xxh3 proves the file, ten times as fast, and torch never checks that CRC), and are
read from the file into the tensor itself, without a copy in between.
"""

from __future__ import annotations

import ctypes
import io
import math
import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import xxhash
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from holdfast.manifest import Entry, hash_of
from holdfast.runtime.checkpoint.unpickling import read_index
from holdfast.runtime.checkpoint.versions import place_of

INDEX = ".metadata"
#: A rank with more than this to write does it in several files at once.
_FILE_BYTES = 64 << 20
MOST_THREADS = 4
#: After so many bytes the disk is set to work, so that it writes while the next ones come.
_BEHIND_BYTES = 32 << 20
_SYNC_FILE_RANGE_WRITE = 2
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)


class HashedFile:
    """A new file that knows the hash of what was written into it. Every method raises OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._behind = 0
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
        for begin in range(0, len(view), _BEHIND_BYTES):
            self._append(view[begin : begin + _BEHIND_BYTES])
        return len(view)

    def _append(self, left: memoryview) -> None:
        self._hash.update(left)
        while left:
            done = os.write(self._handle, left)
            self.size += done
            left = left[done:]
        if self.size - self._behind >= _BEHIND_BYTES and _sync_file_range is not None:
            place = ctypes.c_int64(self._behind), ctypes.c_int64(self.size - self._behind)
            _sync_file_range(self._handle, *place, _SYNC_FILE_RANGE_WRITE)  # a hint: fsync finds what goes wrong
            self._behind = self.size

    @property
    def entry(self) -> Entry:
        """What the manifest says of the file."""
        return Entry(path=self.path.name, size=self.size, xxh3=self._hash.hexdigest())


Written = tuple[list[Entry], list[WriteResult]]


def write_pieces(folder: Path, rank: int, items: Sequence[WriteItem], data: Callable[[WriteItem], Any]) -> Written:
    """Write the pieces into new files, synced; the files, and where each piece stands. Raises OSError."""
    parts = _parts(items)
    with ThreadPoolExecutor(len(parts), thread_name_prefix="holdfast-writer") as threads:
        paths = [folder / f"__{rank}_{number}.distcp" for number in range(len(parts))]
        written = list(threads.map(lambda path, part: _write_file(path, part, data), paths, parts))
    return [entry for entry, _ in written], [result for _, results in written for result in results]


def _parts(items: Sequence[WriteItem]) -> list[list[WriteItem]]:
    """The items in as many parts as are worth a thread each, of about one size."""
    sizes = [_size(item) for item in items]
    number = max(1, min(MOST_THREADS, threads_here(), sum(sizes) // _FILE_BYTES))
    parts: list[list[WriteItem]] = [[] for _ in range(number)]
    loads = [0] * number
    for size, item in sorted(zip(sizes, items, strict=True), key=lambda each: -each[0]):
        least = loads.index(min(loads))
        parts[least].append(item)
        loads[least] += size
    return [part for part in parts if part] or [[]]


def threads_here() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _size(item: WriteItem) -> int:
    if item.tensor_data is None:
        return 0
    return math.prod(item.tensor_data.chunk.sizes) * item.tensor_data.properties.dtype.itemsize


def _write_file(path: Path, items: Sequence[WriteItem], data: Callable[[WriteItem], Any]) -> tuple[Entry, list[Any]]:
    results = []
    with HashedFile(path) as file:
        for item in items:
            begin, piece = file.size, data(item)
            if item.type == WriteItemType.BYTE_IO:
                file.write(piece.getbuffer())
            else:
                _write_tensor(piece.detach().cpu().contiguous(), file)
            place = place_of(path.name, begin, file.size - begin)
            results.append(WriteResult(index=item.index, size_in_bytes=file.size - begin, storage_data=place))
    return file.entry, results


# ---- one tensor: what torch.save makes of it


def _write_tensor(tensor: torch.Tensor, file: HashedFile) -> None:
    """A tensor in host memory, contiguous."""
    if tensor.untyped_storage().nbytes() != tensor.nbytes:
        tensor = tensor.clone()
    stream = _Calm(file)
    save, writer = getattr(torch.serialization, "_save", None), _packer(stream)
    if save is None or writer is None:
        torch.save(tensor, stream)  # type: ignore[arg-type]
    else:
        save(tensor, writer, pickle, 2, False)  # noqa: FBT003 - as torch.save calls it, torch 2.1 to 2.13
        writer.write_end_of_file()
    if stream.error is not None:
        raise stream.error


class _Calm:
    """A file that keeps its error for later: one that passes through torch's writer ends the process (measured)."""

    def __init__(self, file: HashedFile) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        if self.error is None:
            try:
                self._file.write(data)
            except OSError as error:
                error.filename = error.filename or str(self._file.path)
                self.error = error
        return len(data)

    def flush(self) -> None:
        pass


def _packer(file: _Calm) -> Any:
    """A writer of archives of torch's, told to leave the CRC32 out; None where this torch cannot (before 2.6)."""
    try:
        return torch._C.PyTorchFileWriter(file, False, 64)  # type: ignore[call-overload]  # noqa: FBT003, SLF001
    except (AttributeError, TypeError):
        return None


def _described(tensor: torch.Tensor) -> bytes:
    """What ``torch.save`` writes of a contiguous tensor beside its bytes."""
    stream = io.BytesIO()
    storage = tensor._typed_storage()  # noqa: SLF001 - as torch's own
    kind = getattr(torch, storage._pickle_storage_type())  # noqa: SLF001 - as torch's own

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            typed = isinstance(value, torch.storage.TypedStorage)
            return ("storage", kind, "0", "cpu", value._size()) if typed else None  # noqa: SLF001 - as torch's own

    Pickler(stream, protocol=2).dump(tensor)
    return stream.getvalue()


def _data_offset(archive: Any, tensor: torch.Tensor) -> int | None:
    """Where in an archive the bytes of a contiguous tensor like ``tensor`` begin; None where it holds another."""
    try:
        reader = torch._C.PyTorchFileReader(archive)  # noqa: SLF001 - guarded: any surprise is read by torch.load
        if reader.get_record("data.pkl") != _described(tensor):
            return None
        return int(reader.get_record_offset("data/0"))  # type: ignore[attr-defined]
    except (AttributeError, TypeError, RuntimeError):
        return None


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


# ---- back


class Reader(FileSystemReader):
    """torch's reader, that takes nothing from a file but tensors, and reads them where they belong."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """The index. Raises CheckpointUnreadable."""
        folder = Path(self.path)
        with (folder / INDEX).open("rb") as stream:
            return read_index(stream, folder)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read all of the plan: straight into tensors where a whole piece goes into a whole one, else as torch does."""
        per_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            per_file.setdefault(self.storage_data[item.storage_index].relative_path, []).append(item)
        with ThreadPoolExecutor(max(1, min(MOST_THREADS, threads_here())), "holdfast-reader") as threads:
            rest = threads.map(lambda name: self._read_file(Path(self.path) / name, per_file[name], planner), per_file)
            left = [item for items in rest for item in items]
        return super().read_data(LoadPlan(left), planner)

    def _read_file(self, path: Path, items: list[ReadItem], planner: LoadPlanner) -> list[ReadItem]:
        with path.open("rb", buffering=0) as stream:
            return [item for item in items if not self._read_straight(stream, item, planner)]

    def _read_straight(self, stream: io.FileIO, item: ReadItem, planner: LoadPlanner) -> bool:
        place = self.storage_data[item.storage_index]
        if item.type == LoadItemType.BYTE_IO or getattr(place, "transform_descriptors", None):
            return False
        target = planner.resolve_tensor(item).detach()
        if target.device.type != "cpu" or not target.is_contiguous() or any(item.storage_offsets):
            return False
        begin = _data_offset(_Window(stream, place.offset, place.length), torch.empty(target.shape, dtype=target.dtype))
        if begin is None:
            return False
        bytes_of = (ctypes.c_char * target.nbytes).from_address(target.data_ptr()) if target.nbytes else b""
        _read_all(stream.fileno(), memoryview(bytes_of).cast("B"), place.offset + begin)
        planner.commit_tensor(item, target)
        return True


def _read_all(handle: int, room: memoryview, offset: int) -> None:
    while room:
        done = os.preadv(handle, [room], offset)
        if done == 0:
            message = "a file ends before its tensor does"
            raise OSError(message)
        room, offset = room[done:], offset + done


class _Window(io.RawIOBase):
    """A part of a file, as a file; several may be read at once."""

    def __init__(self, stream: io.FileIO, begin: int, length: int) -> None:
        super().__init__()
        self._handle, self._begin, self._length, self._at = stream.fileno(), begin, length, 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place in the part."""
        self._at = offset + (0, self._at, self._length)[whence]
        return self._at

    def tell(self) -> int:
        """The place in the part."""
        return self._at

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def readinto(self, room: Any) -> int:
        """Read on."""
        view = memoryview(room).cast("B")[: max(self._length - self._at, 0)]
        done = os.preadv(self._handle, [view], self._begin + self._at) if view else 0
        self._at += done
        return done


class WeightsOnlyPlanner(DefaultLoadPlanner):
    """torch's planner, that unpickles what is no tensor with ``weights_only`` (torch's own does not, 2.4 to 2.13)."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Take a piece that is no tensor."""
        found = torch.load(value, map_location="cpu", weights_only=True)
        target: Any = self.original_state_dict
        path = self.mappings[read_item.dest_index.fqn]
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = found
