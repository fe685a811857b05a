"""Reads torch.save zip archives: ``data.pkl`` describes tensors stored in ``data/<key>`` records.

Format: torch/serialization.py (``_save``, ``_load``) and caffe2/serialize/inline_container.cc.
Records are stored uncompressed, so each has an offset in the file; compressed records are refused.
"""

from __future__ import annotations

import io
import os
import stat
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from holdfast.ckpt.contents import ITEMSIZE, Tensor, TensorShard
from holdfast.ckpt.files.size_limits import description_limit
from holdfast.ckpt.files.torch_pickle import (
    MAX_BYTES,
    GlobalRefused,
    LoadedPickle,
    PickleUnreadable,
    TensorRef,
    loads,
)
from holdfast.core.errors import CheckpointUnreadable
from holdfast.core.text import os_error_reason

_LOCAL = struct.Struct("<4s5H3I2H")
_LOCAL_MAGIC = b"PK\x03\x04"


class RecordPosition(msgspec.Struct, frozen=True, gc=False):
    """One archive record: its offset and size in the file, and its stored CRC32."""

    offset: int
    size: int
    crc: int


class TorchFile(msgspec.Struct, frozen=True):
    """A torch.save file: its value, in which tensors are ``TensorRef``, and its records."""

    path: Path
    value: Any
    records: Mapping[str, RecordPosition]
    foreign: tuple[str, ...] = ()

    def tensor(self, name: str, tensor: TensorRef, file: str) -> Tensor:
        """Return a tensor of the file, which is ``file`` below the checkpoint root.

        Raises:
            CheckpointUnreadable: its data is not in the file.
        """
        return Tensor(
            name=name, dtype=tensor.dtype, shape=tensor.shape, shards=self.shards(tensor, file)
        )

    def shards(self, tensor: TensorRef, file: str) -> tuple[TensorShard, ...]:
        """Return where the tensor's data is stored; () if it has no elements.

        Raises:
            CheckpointUnreadable: the data is not in the file.
        """
        if 0 in tensor.shape:
            return ()
        record = self.records.get(f"data/{tensor.storage.key}")
        size = ITEMSIZE.get(tensor.dtype)
        if record is None or size is None:
            missing = (
                f"the record data/{tensor.storage.key}"
                if size
                else f"a supported dtype ({tensor.dtype} is not)"
            )
            raise CheckpointUnreadable(self.path, why=f"a tensor lacks {missing}")
        last = tensor.offset + sum(
            (n - 1) * step for n, step in zip(tensor.shape, tensor.strides, strict=True)
        )
        if (last + 1) * size > record.size:
            raise CheckpointUnreadable(
                self.path, why=f"a tensor extends beyond the record data/{tensor.storage.key}"
            )
        dense = is_dense(tensor.shape, tensor.strides)
        return (
            TensorShard(
                file=file,
                offset=record.offset + tensor.offset * size,
                shape=tensor.shape,
                start=(0,) * len(tensor.shape),
                strides=None if dense else tensor.strides,
            ),
        )


def is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether the strides are row-major without gaps."""
    expected = 1
    for n, step in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and step != expected:
            return False
        expected *= n
    return True


class FileWindow(io.RawIOBase):
    """A byte range of an open file as a file object; closing it leaves the file open."""

    def __init__(self, handle: int, start: int, size: int) -> None:
        self._handle, self._start, self._size, self._at = handle, start, size, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, to: int, whence: int = 0) -> int:
        """See :class:`io.IOBase`."""
        self._at = max(0, to + (0, self._at, self._size)[whence])
        return self._at

    def tell(self) -> int:
        """See :class:`io.IOBase`."""
        return self._at

    def readinto(self, into: Any) -> int:
        """See :class:`io.RawIOBase`."""
        wanted = min(len(into), max(0, self._size - self._at))
        data = os.pread(self._handle, wanted, self._start + self._at)
        into[: len(data)] = data
        self._at += len(data)
        return len(data)


def is_zip(path: Path) -> bool:
    """Return whether the file starts with a zip header, as torch's archives do."""
    try:
        with open_binary(path) as stream:
            return stream.read(4) == _LOCAL_MAGIC
    except (OSError, CheckpointUnreadable):
        return False


def archive_name(path: Path) -> str:
    """Return the file name under which ``torch.save`` wrote it, without its suffix.

    'archive' if torch wrote to an open file; '' if it is not such a file.
    """
    try:
        with open_binary(path) as stream:
            header = stream.read(_LOCAL.size + 512)
    except (OSError, CheckpointUnreadable):
        return ""
    if len(header) < _LOCAL.size or header[:4] != _LOCAL_MAGIC:
        return ""
    name = header[_LOCAL.size : _LOCAL.size + _LOCAL.unpack(header[: _LOCAL.size])[-2]]
    return name.decode(errors="replace").partition("/")[0]


def read_torch_file(path: Path, more: Mapping[str, Callable[..., Any]] | None = None) -> TorchFile:
    """Parse the file; tensor data stays on disk. ``more``: see :func:`torch_pickle.loads`.

    Raises:
        CheckpointUnreadable: not a torch.save file, truncated, or refused (then caused by
            ``Refused``).
    """
    try:
        with open_binary(path) as stream:
            return read_embedded_file(
                path, stream.fileno(), 0, os.fstat(stream.fileno()).st_size, more
            )
    except OSError as error:
        raise CheckpointUnreadable(path, why=os_error_reason(error)) from error


def read_embedded_file(
    path: Path,
    handle: int,
    start: int,
    size: int,
    more: Mapping[str, Callable[..., Any]] | None = None,
) -> TorchFile:
    """Parse a torch.save file embedded in another file; offsets are those of the outer file."""
    try:
        with zipfile.ZipFile(
            io.BufferedReader(FileWindow(handle, start, size), 1 << 16)
        ) as archive:
            records = dict(_list_records(archive, handle, start, size))
        loaded = _load_description(handle, records, size, more)
    except (
        GlobalRefused,
        PickleUnreadable,
        zipfile.BadZipFile,
        struct.error,
        UnicodeDecodeError,
        EOFError,
        NotImplementedError,  # zip versions and features that torch.save never writes
    ) as error:
        why = (
            "it is not a torch.save archive, or is truncated"
            if isinstance(error, zipfile.BadZipFile)
            else str(error)
        )
        raise CheckpointUnreadable(path, why=why) from error
    return TorchFile(path, loaded.value, records, loaded.foreign)


def read_records(path: Path) -> Mapping[str, RecordPosition]:
    """Return the records of an archive by name, without reading their data.

    Raises:
        CheckpointUnreadable: not an archive.
    """
    with open_binary(path) as stream:
        handle, size = stream.fileno(), os.fstat(stream.fileno()).st_size
        try:
            with zipfile.ZipFile(
                io.BufferedReader(FileWindow(handle, 0, size), 1 << 16)
            ) as archive:
                return dict(_list_records(archive, handle, 0, size))
        except (
            PickleUnreadable,
            zipfile.BadZipFile,
            struct.error,
            UnicodeDecodeError,
            OSError,
            NotImplementedError,
        ) as error:
            raise CheckpointUnreadable(
                path, why=f"its record directory cannot be read ({error})"
            ) from error


def _load_description(
    handle: int,
    records: Mapping[str, RecordPosition],
    size: int,
    more: Mapping[str, Callable[..., Any]] | None,
) -> LoadedPickle:
    description, order = records.get("data.pkl"), records.get("byteorder")
    if description is None:
        raise PickleUnreadable("it has no record data.pkl: not a torch.save file")
    if order is not None and os.pread(handle, 6, order.offset) != b"little":
        raise PickleUnreadable("its data is big-endian")
    if description.size > (limit := min(MAX_BYTES, description_limit(size))):
        raise PickleUnreadable(f"its data.pkl is larger than {limit >> 20} MiB")
    return loads(os.pread(handle, description.size, description.offset), more)


def _list_records(
    archive: zipfile.ZipFile, handle: int, start: int, size: int
) -> Iterator[tuple[str, RecordPosition]]:
    """Yield each record with its name below the archive's top folder. Raises Unreadable."""
    names: set[str] = set()
    for entry in archive.infolist():
        name = entry.filename.partition("/")[2]
        if name in names:
            raise PickleUnreadable(f"it contains the record {name} twice")
        names.add(name)
        if entry.compress_type != zipfile.ZIP_STORED:
            raise PickleUnreadable(
                f"its record {name} is compressed, which torch.save never writes"
            )
        inside = 0 <= entry.header_offset < size
        header = os.pread(handle, _LOCAL.size, start + entry.header_offset) if inside else b""
        if len(header) < _LOCAL.size or header[:4] != _LOCAL_MAGIC:
            raise PickleUnreadable(f"its record {name} is not at the offset in the directory")
        *_, name_bytes, extra_bytes = _LOCAL.unpack(header)
        offset = entry.header_offset + _LOCAL.size + name_bytes + extra_bytes
        if offset + entry.file_size > size:
            raise PickleUnreadable(f"its record {name} extends beyond the end of the file")
        yield name, RecordPosition(start + offset, entry.file_size, entry.CRC)


def to_plain(value: Any, depth: int = 40) -> Any:
    """Return ``value`` as JSON-compatible data; tensors and objects become ``<...>`` text."""
    if depth == 0:
        return "<nested too deeply>"
    if isinstance(value, Mapping):
        return {str(key): to_plain(element, depth - 1) for key, element in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_plain(item, depth - 1) for item in value]
    if isinstance(value, TensorRef):
        return f"<{value.dtype} tensor of {list(value.shape)}>"
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    return f"<{getattr(value, 'path', type(value).__name__)}>"


def open_binary(path: Path) -> BinaryIO:
    """Open a regular file for reading; never blocks on a pipe or device.

    Raises:
        CheckpointUnreadable: it cannot be opened, or is not a regular file.
    """
    try:
        stream = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
        if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            return stream
        stream.close()
    except OSError as error:
        raise CheckpointUnreadable(path, why=os_error_reason(error)) from error
    raise CheckpointUnreadable(path, why="not a regular file")
