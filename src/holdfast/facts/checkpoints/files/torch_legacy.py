"""Files of torch.save of before torch 1.6, and of ``_use_new_zipfile_serialization=False`` since.

    magic number │ protocol │ system │ the value │ keys of storages │ count, numbers │ count, numbers │ ...

The first five are pickles; a storage is the count of its elements (8 bytes) and the elements, in the order of the keys.
The form is that of torch/serialization.py (``_legacy_save``) and torch/csrc/serialization.cpp.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import ITEMSIZE
from holdfast.facts.checkpoints.files import torch_files, torch_pickle
from holdfast.facts.checkpoints.files.torch_files import Record, TorchFile
from holdfast.facts.checkpoints.files.torch_pickle import MOST_BYTES, Loaded, Refused, Storage, TensorAt, Unreadable

#: ``pickle.dumps(0x1950a86a20f9469cfc6c)``: protocol 2, and a long of ten bytes.
MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_PROTOCOL = 1001
_COUNT_BYTES = 8
_WINDOWS = (1 << 16, 1 << 22, 1 << 26, MOST_BYTES)


def is_legacy(path: Path) -> bool:
    """True where the file begins as such a file does."""
    try:
        with torch_files.open_binary(path) as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except (OSError, CheckpointUnreadable):
        return False


def read(path: Path, more: Mapping[str, Callable[..., Any]] | None = None) -> TorchFile:
    """What the file describes, whichever of torch.save's forms it has; its numbers stay where they are.

    Raises:
        CheckpointUnreadable: it is none, is cut short, or names what no checkpoint needs (a ``Refused`` is its cause).
    """
    if not is_legacy(path):
        return torch_files.read(path, more)
    try:
        with torch_files.open_binary(path) as stream:
            return _read(path, stream, more)
    except (Refused, Unreadable) as error:
        raise CheckpointUnreadable(path, why=str(error)) from error
    except OSError as error:
        raise CheckpointUnreadable(path, why=(error.strerror or str(error)).lower()) from error


def _read(path: Path, stream: BinaryIO, more: Mapping[str, Callable[..., Any]] | None) -> TorchFile:
    stream.seek(len(MAGIC))
    protocol, system = _next(stream).value, _next(stream).value
    if protocol != _PROTOCOL:
        raise Unreadable(f"it is of protocol {protocol} of torch.save, and {_PROTOCOL} is known here")
    if isinstance(system, Mapping) and system.get("little_endian") is False:
        raise Unreadable("its numbers are big-endian")
    loaded, keys = _next(stream, more), _next(stream).value
    if not isinstance(keys, list):
        raise Unreadable("it has no list of storages after its value")
    sizes = dict(_sizes(loaded.value))
    records: dict[str, Record] = {}
    at, end = stream.tell(), os.fstat(stream.fileno()).st_size
    for key in map(str, keys):
        itemsize = sizes.get(key, 1)
        count = int.from_bytes(os.pread(stream.fileno(), _COUNT_BYTES, at), "little")
        at += _COUNT_BYTES
        if at + count * itemsize > end:
            raise Unreadable(f"it is cut short: the storage {key} goes beyond its end")
        records[f"data/{key}"] = Record(at, count * itemsize, 0)
        at += count * itemsize
    return TorchFile(path, loaded.value, records, loaded.foreign)


def _next(stream: BinaryIO, more: Mapping[str, Callable[..., Any]] | None = None) -> Loaded:
    """The next pickle, from a window no larger than it needs: behind it there may be 100 GB of numbers."""
    at = stream.tell()
    for size in _WINDOWS:
        stream.seek(at)
        data = stream.read(size)
        try:
            end = torch_pickle.look(data)
        except torch_pickle.CutShort:
            if len(data) < size or size == _WINDOWS[-1]:
                raise
            continue
        stream.seek(at + end)
        return torch_pickle.load(io.BytesIO(data[:end]), more)
    raise AssertionError  # the last window returns or raises


def _sizes(value: Any, seen: set[int] | None = None) -> Iterator[tuple[str, int]]:
    """Each storage that the value names, and the bytes of one of its elements."""
    seen = set() if seen is None else seen
    waiting = [value]
    while waiting:
        each = waiting.pop()
        storage = each.storage if isinstance(each, TensorAt) else each
        if isinstance(storage, Storage):
            yield storage.key, ITEMSIZE.get(storage.dtype, 1)
        elif id(each) not in seen:
            seen.add(id(each))
            waiting.extend(_inside(each))


def _inside(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    return [*vars(value).values()] if isinstance(value, torch_pickle.Opaque) else []
