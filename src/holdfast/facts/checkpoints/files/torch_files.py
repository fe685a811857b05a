"""Files of torch.save: zip archives whose record ``data.pkl`` describes, and whose records ``data/<key>`` hold numbers.

The form is that of torch/serialization.py (``_save``, ``_load``) and caffe2/serialize/inline_container.cc. Records are
stored, never packed, so that each has its place in the file; one that is packed is refused.
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

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import ITEMSIZE, Piece, Tensor
from holdfast.facts.checkpoints.files.torch_pickle import MOST_BYTES, Loaded, Refused, TensorAt, Unreadable, loads

_LOCAL = struct.Struct("<4s5H3I2H")
_LOCAL_MAGIC = b"PK\x03\x04"


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record of an archive: where its bytes stand in the file, how many, and their CRC32 by the archive."""

    offset: int
    size: int
    crc: int


class TorchFile(msgspec.Struct, frozen=True):
    """A file of torch.save: the value, in which tensors are ``TensorAt``, and the records they stand in."""

    path: Path
    value: Any
    records: Mapping[str, Record]
    foreign: tuple[str, ...] = ()

    def tensor(self, name: str, found: TensorAt, file: str) -> Tensor:
        """A tensor of the file, which is ``file`` below the root of a checkpoint, as a whole one.

        Raises:
            CheckpointUnreadable: its numbers are not in the file.
        """
        return Tensor(name=name, dtype=found.dtype, shape=found.shape, pieces=self.pieces(found, file))

    def pieces(self, found: TensorAt, file: str) -> tuple[Piece, ...]:
        """Where its numbers stand; none where it has none. Raises CheckpointUnreadable: they are not in the file."""
        if 0 in found.shape:
            return ()
        record = self.records.get(f"data/{found.storage.key}")
        size = ITEMSIZE.get(found.dtype)
        if record is None or size is None:
            missing = f"the record data/{found.storage.key}" if size else f"a dtype known here ({found.dtype})"
            raise CheckpointUnreadable(self.path, why=f"a tensor in it lacks {missing}")
        last = found.offset + sum((n - 1) * step for n, step in zip(found.shape, found.strides, strict=True))
        if (last + 1) * size > record.size:
            raise CheckpointUnreadable(self.path, why=f"a tensor in it goes beyond the record data/{found.storage.key}")
        dense = is_dense(found.shape, found.strides)
        return (
            Piece(
                file=file, offset=record.offset + found.offset * size, shape=found.shape,
                start=(0,) * len(found.shape), strides=None if dense else found.strides,
            ),
        )  # fmt: skip


def is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Row-major and without gaps."""
    expected = 1
    for n, step in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and step != expected:
            return False
        expected *= n
    return True


class Window(io.RawIOBase):
    """A part of a file as a file; it does not close what it stands on."""

    def __init__(self, handle: int, start: int, size: int) -> None:
        self._handle, self._start, self._size, self._at = handle, start, size, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
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
    """True where the file begins as torch's archives do."""
    try:
        with open_binary(path) as stream:
            return stream.read(4) == _LOCAL_MAGIC
    except (OSError, CheckpointUnreadable):
        return False


def read(path: Path, more: Mapping[str, Callable[..., Any]] | None = None) -> TorchFile:
    """What the file describes; its numbers stay where they are. ``more``: see :func:`torch_pickle.loads`.

    Raises:
        CheckpointUnreadable: it is none, is cut short, or names what no checkpoint needs (a ``Refused`` is its cause).
    """
    try:
        with open_binary(path) as stream:
            return read_window(path, stream.fileno(), 0, os.fstat(stream.fileno()).st_size, more)
    except OSError as error:
        raise CheckpointUnreadable(path, why=(error.strerror or str(error)).lower()) from error


def read_window(
    path: Path, handle: int, start: int, size: int, more: Mapping[str, Callable[..., Any]] | None = None
) -> TorchFile:
    """The file of torch.save that stands in ``size`` bytes of another one; places are those of the other one."""
    try:
        with zipfile.ZipFile(io.BufferedReader(Window(handle, start, size), 1 << 16)) as archive:
            records = dict(_records(archive, handle, start, size))
        loaded = _described(handle, records, more)
    except (Refused, Unreadable, zipfile.BadZipFile, struct.error, UnicodeDecodeError, EOFError) as error:
        why = "it is no archive of torch.save, or is cut short" if isinstance(error, zipfile.BadZipFile) else str(error)
        raise CheckpointUnreadable(path, why=why) from error
    return TorchFile(path, loaded.value, records, loaded.foreign)


def records(path: Path) -> Mapping[str, Record]:
    """The records of an archive by their names, without reading one. Raises CheckpointUnreadable: it is none."""
    with open_binary(path) as stream:
        handle, size = stream.fileno(), os.fstat(stream.fileno()).st_size
        try:
            with zipfile.ZipFile(io.BufferedReader(Window(handle, 0, size), 1 << 16)) as archive:
                return dict(_records(archive, handle, 0, size))
        except (Unreadable, zipfile.BadZipFile, struct.error, UnicodeDecodeError, OSError) as error:
            raise CheckpointUnreadable(path, why=f"its directory of records cannot be read ({error})") from error


def _described(handle: int, records: Mapping[str, Record], more: Mapping[str, Callable[..., Any]] | None) -> Loaded:
    described, order = records.get("data.pkl"), records.get("byteorder")
    if described is None:
        raise Unreadable("it has no record data.pkl: torch.save did not write it")
    if order is not None and os.pread(handle, 6, order.offset) != b"little":
        raise Unreadable("its numbers are big-endian")
    if described.size > MOST_BYTES:
        raise Unreadable(f"its description has more than {MOST_BYTES >> 20} MiB")
    return loads(os.pread(handle, described.size, described.offset), more)


def _records(archive: zipfile.ZipFile, handle: int, start: int, size: int) -> Iterator[tuple[str, Record]]:
    """Each record by its name below the archive's own folder. Raises Unreadable."""
    seen: set[str] = set()
    for entry in archive.infolist():
        name = entry.filename.partition("/")[2]
        if name in seen:
            raise Unreadable(f"it has the record {name} twice")
        seen.add(name)
        if entry.compress_type != zipfile.ZIP_STORED:
            raise Unreadable(f"its record {name} is compressed, which torch.save never does")
        header = os.pread(handle, _LOCAL.size, start + entry.header_offset)
        if len(header) < _LOCAL.size or header[:4] != _LOCAL_MAGIC:
            raise Unreadable(f"its record {name} is not where the archive says")
        *_, name_bytes, extra_bytes = _LOCAL.unpack(header)
        offset = entry.header_offset + _LOCAL.size + name_bytes + extra_bytes
        if offset + entry.file_size > size:
            raise Unreadable(f"its record {name} goes beyond its end")
        yield name, Record(start + offset, entry.file_size, entry.CRC)


def plain(value: Any, depth: int = 40) -> Any:
    """``value`` without tensors and objects, as JSON could hold it: those are told by a word in angle brackets."""
    if depth == 0:
        return "<deeper>"
    if isinstance(value, Mapping):
        return {str(key): plain(each, depth - 1) for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(each, depth - 1) for each in value]
    if isinstance(value, TensorAt):
        return f"<{value.dtype} tensor of {list(value.shape)}>"
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    return f"<{getattr(value, 'path', type(value).__name__)}>"


def open_binary(path: Path) -> BinaryIO:
    """The file, to read; a pipe or a device would be waited for. Raises CheckpointUnreadable."""
    try:
        stream = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
        if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            return stream
        stream.close()
    except OSError as error:
        raise CheckpointUnreadable(path, why=(error.strerror or str(error)).lower()) from error
    raise CheckpointUnreadable(path, why="it is no file")
