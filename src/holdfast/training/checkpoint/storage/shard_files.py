"""Write and read shards in torch.distributed.checkpoint's format, hashing bytes while writing.

Each shard is a tensor as ``torch.save`` writes it, appended to the rank's own files
(``__<rank>_0.distcp``), so that torch's ``dcp.load`` can read them. Two operations are faster than
torch's, and fall back to it: packing omits torch's CRC32 (xxh3 covers the file at ten times the
speed, and torch never checks that CRC), and tensors are read from the file in place, without an
intermediate copy.
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

import msgspec
import torch
import xxhash
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from holdfast.core.checkpoint_manifest import Manifest, ManifestEntry, hash_file
from holdfast.training.checkpoint.storage.hashing import VerifiedFiles
from holdfast.training.checkpoint.torch_versions import storage_info
from holdfast.training.checkpoint.unpickling import read_index

INDEX = ".metadata"
#: A rank writes one more file in parallel for each of these many bytes.
_FILE_BYTES = 64 << 20
MAX_THREADS = 4
#: Bytes after which writeback starts, so that the disk works while more data arrives.
_FLUSH_BYTES = 32 << 20
_SYNC_FILE_RANGE_WRITE = 2
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)


class HashedFile:
    """A new file that hashes what is written to it. Every method raises OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._flushed = 0
        self._hash = xxhash.xxh3_128()
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                os.fsync(self._handle)
        finally:
            os.close(self._handle)

    def write(self, data: Any) -> int:
        """Append all of ``data``; return its size in bytes."""
        view = memoryview(data).cast("B")
        for begin in range(0, len(view), _FLUSH_BYTES):
            self._append(view[begin : begin + _FLUSH_BYTES])
        return len(view)

    def _append(self, remaining: memoryview) -> None:
        self._hash.update(remaining)
        while remaining:
            count = os.write(self._handle, remaining)
            self.size += count
            remaining = remaining[count:]
        if self.size - self._flushed >= _FLUSH_BYTES and _sync_file_range is not None:
            span = ctypes.c_int64(self._flushed), ctypes.c_int64(self.size - self._flushed)
            # Only a hint: errors surface in fsync.
            _sync_file_range(self._handle, *span, _SYNC_FILE_RANGE_WRITE)
            self._flushed = self.size

    @property
    def entry(self) -> ManifestEntry:
        """Return the file's manifest entry."""
        return ManifestEntry(path=self.path.name, size=self.size, xxh3=self._hash.hexdigest())


Written = tuple[list[ManifestEntry], list[WriteResult]]


def write_shards(
    folder: Path, rank: int, items: Sequence[WriteItem], data: Callable[[WriteItem], Any]
) -> Written:
    """Write shards into new, synced files; return files and shard locations. Raises OSError."""
    parts = _partition(items)
    with ThreadPoolExecutor(len(parts), thread_name_prefix="holdfast-writer") as threads:
        paths = [folder / f"__{rank}_{number}.distcp" for number in range(len(parts))]
        written = list(threads.map(lambda path, part: _write_file(path, part, data), paths, parts))
    return [entry for entry, _ in written], [result for _, results in written for result in results]


def _partition(items: Sequence[WriteItem]) -> list[list[WriteItem]]:
    """Split the items into parts of similar size, one per writer thread."""
    sizes = [_item_bytes(item) for item in items]
    number = max(1, min(MAX_THREADS, available_cores(), sum(sizes) // _FILE_BYTES))
    parts: list[list[WriteItem]] = [[] for _ in range(number)]
    loads = [0] * number
    for size, item in sorted(zip(sizes, items, strict=True), key=lambda each: -each[0]):
        smallest = loads.index(min(loads))
        parts[smallest].append(item)
        loads[smallest] += size
    return [part for part in parts if part] or [[]]


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _item_bytes(item: WriteItem) -> int:
    if item.tensor_data is None:
        return 0
    return math.prod(item.tensor_data.chunk.sizes) * item.tensor_data.properties.dtype.itemsize


def _write_file(
    path: Path, items: Sequence[WriteItem], data: Callable[[WriteItem], Any]
) -> tuple[ManifestEntry, list[Any]]:
    results = []
    with HashedFile(path) as file:
        for item in items:
            begin, content = file.size, data(item)
            if item.type == WriteItemType.BYTE_IO:
                file.write(content.getbuffer())
            else:
                _write_tensor(content.detach().cpu().contiguous(), file)
            location = storage_info(path.name, begin, file.size - begin)
            results.append(
                WriteResult(
                    index=item.index, size_in_bytes=file.size - begin, storage_data=location
                )
            )
    return file.entry, results


# ---- one tensor in torch.save's format


def _write_tensor(tensor: torch.Tensor, file: HashedFile) -> None:
    """Write a contiguous tensor in host memory."""
    if tensor.untyped_storage().nbytes() != tensor.nbytes:
        tensor = tensor.clone()
    stream = _DeferredErrorFile(file)
    save, writer = getattr(torch.serialization, "_save", None), _archive_writer(stream)
    if save is None or writer is None:
        torch.save(tensor, stream)  # type: ignore[arg-type]
    else:
        save(tensor, writer, pickle, 2, False)  # noqa: FBT003 - as torch.save calls it, torch 2.1 to 2.13
        writer.write_end_of_file()
    if stream.error is not None:
        raise stream.error


class _DeferredErrorFile:
    """A file that stores its write error for later.

    An error raised inside torch's writer ends the process (measured).
    """

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


def _archive_writer(file: _DeferredErrorFile) -> Any:
    """Return torch's archive writer without CRC32; None before torch 2.6."""
    try:
        return torch._C.PyTorchFileWriter(file, False, 64)  # type: ignore[call-overload]  # noqa: FBT003, SLF001
    except (AttributeError, TypeError):
        return None


def _pickle_header(tensor: torch.Tensor) -> bytes:
    """Return what ``torch.save`` writes for a contiguous tensor besides its data."""
    stream = io.BytesIO()
    storage = tensor._typed_storage()  # noqa: SLF001 - as torch's own
    error_type = getattr(torch, storage._pickle_storage_type())  # noqa: SLF001 - as torch's own

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            typed = isinstance(value, torch.storage.TypedStorage)
            return ("storage", error_type, "0", "cpu", value._size()) if typed else None  # noqa: SLF001 - as torch's own

    Pickler(stream, protocol=2).dump(tensor)
    return stream.getvalue()


def _data_offset(archive: Any, tensor: torch.Tensor) -> int | None:
    """Return where a contiguous tensor like ``tensor`` begins in an archive; None if no match."""
    try:
        reader = torch._C.PyTorchFileReader(archive)  # noqa: SLF001 - guarded: any surprise is read by torch.load
        if reader.get_record("data.pkl") != _pickle_header(tensor):
            return None
        return int(reader.get_record_offset("data/0"))  # type: ignore[attr-defined]
    except (AttributeError, TypeError, RuntimeError):
        return None


def write_index(folder: Path, index: Metadata, results: list[list[WriteResult]]) -> ManifestEntry:
    """Write torch's index of all shards, synced. Raises OSError."""
    FileSystemWriter(folder).finish(index, results)
    path = folder / INDEX
    return ManifestEntry(path=INDEX, size=path.stat().st_size, xxh3=hash_file(path))


def write_bytes(path: Path, data: bytes) -> ManifestEntry:
    """Write one new file, synced. Raises OSError."""
    with HashedFile(path) as file:
        file.write(data)
    return file.entry


def sync_path(path: Path) -> None:
    """Make the content of a file, or the names in a folder, durable. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ---- reading


class ShardReader(FileSystemReader):
    """torch's reader, restricted to tensors, reading in place where possible.

    Files in ``verified`` are copied from their mappings.
    """

    def __init__(self, folder: Path, verified: VerifiedFiles | None = None) -> None:
        super().__init__(folder)
        self._verified = verified or VerifiedFiles()
        self._headers: dict[tuple[torch.dtype, torch.Size, int], bytes] = {}

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return the index. Raises CheckpointUnreadable."""
        folder = Path(self.path)
        with (folder / INDEX).open("rb") as stream:
            return read_index(stream, folder)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the plan's items: whole shards in place, all others with torch's reader."""
        per_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            per_file.setdefault(self.storage_data[item.storage_index].relative_path, []).append(
                item
            )
        with ThreadPoolExecutor(
            max(1, min(MAX_THREADS, available_cores())), "holdfast-reader"
        ) as threads:
            rest = threads.map(
                lambda name: self._read_file(Path(self.path) / name, per_file[name], planner),
                per_file,
            )
            remaining = [item for items in rest for item in items]
        return super().read_data(LoadPlan(remaining), planner)

    def _read_file(self, path: Path, items: list[ReadItem], planner: LoadPlanner) -> list[ReadItem]:
        with path.open("rb", buffering=0) as stream:
            return [item for item in items if not self._read_in_place(stream, item, planner)]

    def _read_in_place(self, stream: io.FileIO, item: ReadItem, planner: LoadPlanner) -> bool:
        location = self.storage_data[item.storage_index]
        if item.type == LoadItemType.BYTE_IO or getattr(location, "transform_descriptors", None):
            return False
        target = planner.resolve_tensor(item).detach()
        if target.device.type != "cpu" or not target.is_contiguous() or any(item.storage_offsets):
            return False
        begin = self._find_data(stream, location, target)
        if begin is None:
            return False
        offset = location.offset + begin
        path = Path(self.path) / location.relative_path
        if target.nbytes and not self._verified.copy(
            path, offset, target.data_ptr(), target.nbytes
        ):
            buffer = (ctypes.c_char * target.nbytes).from_address(target.data_ptr())
            _read_all(stream.fileno(), memoryview(buffer).cast("B"), offset)
        planner.commit_tensor(item, target)
        return True

    def _find_data(self, stream: io.FileIO, location: Any, target: torch.Tensor) -> int | None:
        """Return where the tensor's data begins in its shard; tensors of a shape share a header."""
        key = (target.dtype, target.shape, location.length)
        header = self._headers.get(key)
        if header and os.pread(stream.fileno(), len(header), location.offset) == header:
            return len(header)
        begin = _data_offset(
            _FileWindow(stream, location.offset, location.length),
            torch.empty(target.shape, dtype=target.dtype),
        )
        if begin is not None:
            self._headers[key] = os.pread(stream.fileno(), begin, location.offset)
        return begin


def _read_all(handle: int, buffer: memoryview, offset: int) -> None:
    while buffer:
        count = os.preadv(handle, [buffer], offset)
        if count == 0:
            message = "a file ends before its tensor does"
            raise OSError(message)
        buffer, offset = buffer[count:], offset + count


class _FileWindow(io.RawIOBase):
    """A section of a file, as a file; several can be read in parallel."""

    def __init__(self, stream: io.FileIO, begin: int, length: int) -> None:
        super().__init__()
        self._handle, self._begin, self._length, self._offset = stream.fileno(), begin, length, 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset in the section."""
        self._offset = offset + (0, self._offset, self._length)[whence]
        return self._offset

    def tell(self) -> int:
        """Return the offset in the section."""
        return self._offset

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; return the number of bytes."""
        view = memoryview(buffer).cast("B")[: max(self._length - self._offset, 0)]
        count = os.preadv(self._handle, [view], self._begin + self._offset) if view else 0
        self._offset += count
        return count


class WeightsOnlyPlanner(DefaultLoadPlanner):
    """torch's planner, but unpickling with ``weights_only`` (torch 2.4 to 2.13 does not)."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Load a shard that is not a tensor."""
        loaded = torch.load(value, map_location="cpu", weights_only=True)
        target: Any = self.original_state_dict
        path = self.mappings[read_item.dest_index.fqn]
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = loaded


def assigned_files(manifest: Manifest, index: int, count: int) -> Manifest:
    """Return the manifest with share ``index`` of ``count``, balanced by size."""
    loads = [0] * count
    assigned = []
    for entry in sorted(manifest.files, key=lambda entry: (-entry.size, entry.path)):
        share = loads.index(min(loads))
        loads[share] += entry.size + 1
        if share == index:
            assigned.append(entry)
    return msgspec.structs.replace(manifest, files=tuple(assigned))
