"""Reads torch.save files from before torch 1.6, or with the new zip format disabled.

    magic number │ protocol │ system │ the value │ storage keys │ count, data │ count, data │ ...

The first five are pickles; a storage is its element count (8 bytes) and the elements, in the order
of the keys. Format: torch/serialization.py (``_legacy_save``), torch/csrc/serialization.cpp.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.ckpt.contents import ITEMSIZE
from holdfast.ckpt.files import torch_files, torch_pickle
from holdfast.ckpt.files.torch_files import RecordPosition, TorchFile
from holdfast.ckpt.files.torch_pickle import (
    MAX_BYTES,
    GlobalRefused,
    LoadedPickle,
    PickleUnreadable,
    StorageRef,
    TensorRef,
)
from holdfast.core.errors import CheckpointUnreadable
from holdfast.core.text import os_error_reason

#: ``pickle.dumps(0x1950a86a20f9469cfc6c)``: protocol 2 and a ten-byte long.
MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_PROTOCOL = 1001
_COUNT_BYTES = 8
_WINDOWS = (1 << 16, 1 << 22, 1 << 26, MAX_BYTES)


def is_legacy(path: Path) -> bool:
    """Return whether the file starts with the legacy magic number."""
    try:
        with torch_files.open_binary(path) as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except (OSError, CheckpointUnreadable):
        return False


def read_torch_file(path: Path, more: Mapping[str, Callable[..., Any]] | None = None) -> TorchFile:
    """Parse a torch.save file, legacy or zip; tensor data stays on disk.

    Raises:
        CheckpointUnreadable: not a torch.save file, truncated, or refused (then caused by
            ``Refused``).
    """
    if not is_legacy(path):
        return torch_files.read_torch_file(path, more)
    try:
        with torch_files.open_binary(path) as stream:
            return _read_legacy(path, stream, more)
    except (GlobalRefused, PickleUnreadable) as error:
        raise CheckpointUnreadable(path, why=str(error)) from error
    except OSError as error:
        raise CheckpointUnreadable(path, why=os_error_reason(error)) from error


def _read_legacy(
    path: Path, stream: BinaryIO, more: Mapping[str, Callable[..., Any]] | None
) -> TorchFile:
    stream.seek(len(MAGIC))
    protocol, system = _next_pickle(stream).value, _next_pickle(stream).value
    if protocol != _PROTOCOL:
        raise PickleUnreadable(
            f"it has torch.save protocol {protocol}; only {_PROTOCOL} is supported"
        )
    if isinstance(system, Mapping) and system.get("little_endian") is False:
        raise PickleUnreadable("its data is big-endian")
    loaded, keys = _next_pickle(stream, more), _next_pickle(stream).value
    if not isinstance(keys, list):
        raise PickleUnreadable("it has no storage list after its value")
    sizes = dict(_storage_itemsizes(loaded.value))
    records: dict[str, RecordPosition] = {}
    at, end = stream.tell(), os.fstat(stream.fileno()).st_size
    for key in map(str, keys):
        itemsize = sizes.get(key, 1)
        count = int.from_bytes(os.pread(stream.fileno(), _COUNT_BYTES, at), "little")
        at += _COUNT_BYTES
        if at + count * itemsize > end:
            raise PickleUnreadable(f"it is truncated: the storage {key} extends beyond its end")
        records[f"data/{key}"] = RecordPosition(at, count * itemsize, 0)
        at += count * itemsize
    return TorchFile(path, loaded.value, records, loaded.foreign)


def _next_pickle(
    stream: BinaryIO, more: Mapping[str, Callable[..., Any]] | None = None
) -> LoadedPickle:
    """Read the next pickle with the smallest sufficient window; 100 GB of data may follow it."""
    at = stream.tell()
    for size in _WINDOWS:
        stream.seek(at)
        data = stream.read(size)
        try:
            end = torch_pickle.scan_opcodes(data)
        except torch_pickle.TorchPickleTruncated:
            if len(data) < size or size == _WINDOWS[-1]:
                raise
            continue
        stream.seek(at + end)
        return torch_pickle.load(io.BytesIO(data[:end]), more)
    raise AssertionError  # the last window returns or raises


def _storage_itemsizes(value: Any, visited: set[int] | None = None) -> Iterator[tuple[str, int]]:
    """Yield each storage key that the value references, and its element size."""
    visited = set() if visited is None else visited
    pending = [value]
    while pending:
        item = pending.pop()
        storage = item.storage if isinstance(item, TensorRef) else item
        if isinstance(storage, StorageRef):
            yield storage.key, ITEMSIZE.get(storage.dtype, 1)
        elif id(item) not in visited:
            visited.add(id(item))
            pending.extend(_children(item))


def _children(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    return [*vars(value).values()] if isinstance(value, torch_pickle.OpaqueObject) else []
