"""Parses the torch.distributed.checkpoint index (``.metadata``): shards and their locations.

Format: torch/distributed/checkpoint/metadata.py and filesystem.py (``_StorageInfo``), torch 2.1 to
2.13. It is a pickle that torch itself loads unrestricted; here nothing in it is executed, and no
torch class is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.ckpt.contents import ITEMSIZE
from holdfast.ckpt.files.size_limits import description_limit
from holdfast.ckpt.files.torch_files import open_binary
from holdfast.ckpt.files.torch_pickle import (
    MAX_BYTES,
    GlobalRefused,
    PickledDtype,
    PickleUnreadable,
    loads,
)
from holdfast.core.errors import CheckpointUnreadable
from holdfast.report.evidence_summary import size_text

FILE = ".metadata"
_MAX_DIMENSIONS = 64
#: Minimum pickle bytes per shard, against a small file whose tensors share one long list.
_MIN_SHARD_BYTES = 8


class _LockedClass(type):
    """Prevents a pickle from setting class attributes; instance attributes are allowed."""

    def __setattr__(cls, name: str, value: object) -> None:
        message = "it sets an attribute of a class"
        raise PickleUnreadable(message)


class _IndexObject(metaclass=_LockedClass):
    """An object of the index with its attributes; plain, so the unpickler fills it in C."""


class _MetadataIndex(_IndexObject):
    pass


class _StorageInfo(_IndexObject):
    pass


class _ChunkMetadata(_IndexObject):
    pass


class _TensorMetadata(_IndexObject):
    pass


class _BytesMetadata(_IndexObject):
    pass


class _DcpMetadata(_IndexObject):
    pass


class _Properties(metaclass=_LockedClass):
    """Tensor properties; a tuple whose first item is the dtype."""

    dtype: Any = None

    def __setstate__(self, state: Any) -> None:
        """Keep only the dtype."""
        self.dtype = state[0] if isinstance(state, tuple) and state else None


class IndexChunk(msgspec.Struct, frozen=True, gc=False):
    """A box of a tensor, or another value: ``length`` bytes at ``offset``; file '': not stored."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    file: str = ""
    offset: int = 0
    length: int = 0
    packed: bool = False

    @property
    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)


class IndexEntry(msgspec.Struct, frozen=True):
    """One key: its path in the nested state_dict; dtype and shape for tensors (else dtype '')."""

    key: str
    path: tuple[str | int, ...]
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[IndexChunk, ...]


def read_index(path: Path, size: int = 1 << 60) -> tuple[IndexEntry, ...]:
    """Return the entries of an index, in the order of the saved state_dict.

    ``size``: the bytes of all files that it describes, which bound it.

    Raises:
        CheckpointUnreadable: not an index, truncated, or refused (then caused by ``Refused``).
    """
    with open_binary(path) as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > description_limit(size):
        why = f"an index of {size_text(len(data))} for files of only {size_text(size)}"
        raise CheckpointUnreadable(path, why=why)
    try:
        return tuple(_entries(vars(_load_metadata(data)), len(data) // _MIN_SHARD_BYTES))
    except GlobalRefused as error:
        raise CheckpointUnreadable(path, why=str(error)) from error
    except (PickleUnreadable, ValueError, TypeError, KeyError, AttributeError) as error:
        why = (
            str(error)
            if isinstance(error, PickleUnreadable)
            else f"it is inconsistent ({type(error).__name__})"
        )
        raise CheckpointUnreadable(path, why=f"invalid index: {why}") from error


def merge_indexes(indexes: Iterable[tuple[IndexEntry, ...]]) -> tuple[IndexEntry, ...]:
    """Merge the indexes that ranks wrote separately (saved without collectives)."""
    merged: dict[str, IndexEntry] = {}
    for entries in indexes:
        for entry in entries:
            known = merged.get(entry.key)
            chunks = entry.chunks if known is None else (*known.chunks, *entry.chunks)
            merged[entry.key] = msgspec.structs.replace(entry, chunks=chunks)
    return tuple(merged.values())


def _load_metadata(data: bytes) -> _DcpMetadata:
    if len(data) > MAX_BYTES:
        raise PickleUnreadable(f"it is larger than {MAX_BYTES >> 20} MiB")
    metadata = loads(data, _CLASSES).value
    if not isinstance(metadata, _DcpMetadata):
        raise PickleUnreadable("not an index of torch.distributed.checkpoint")
    return metadata


def _entries(metadata: Mapping[str, Any], most: int) -> Iterable[IndexEntry]:
    entries = metadata["state_dict_metadata"]
    paths = metadata.get("planner_data")
    paths = paths if isinstance(paths, dict) else {}
    storage = _storage_by_key(metadata.get("storage_data"))
    order = [
        *(key for key in paths if key in entries),
        *(key for key in entries if key not in paths),
    ]
    for key in order:
        if not isinstance(key, str):
            raise PickleUnreadable("it has a key that is not text")
        tensor_metadata, path = entries[key], _key_path(paths.get(key), key)
        if isinstance(tensor_metadata, _TensorMetadata):
            most -= len(tensor_metadata.chunks)  # type: ignore[attr-defined]
            if most < 0:
                raise PickleUnreadable("it has more shards than its size allows")
            yield _tensor_entry(key, path, vars(tensor_metadata), storage)
        else:
            yield IndexEntry(
                key,
                path,
                "",
                (),
                (_make_chunk((), (), storage.get((key, None)) or storage.get((key, ()))),),
            )


def _tensor_entry(
    key: str,
    path: tuple[str | int, ...],
    tensor_metadata: Mapping[str, Any],
    storage: Mapping[Any, Any],
) -> IndexEntry:
    dtype, shape = tensor_metadata["properties"].dtype, _check_sizes(tensor_metadata["size"])
    if not isinstance(dtype, PickledDtype) or dtype.name not in ITEMSIZE:
        raise PickleUnreadable(f"{key} has an unsupported dtype")
    chunks = []
    for chunk_metadata in tensor_metadata["chunks"]:
        start, sizes = _check_sizes(chunk_metadata.offsets), _check_sizes(chunk_metadata.sizes)
        if not len(start) == len(sizes) == len(shape):
            raise PickleUnreadable(f"a shard of {key} has a different number of dimensions")
        if any(at + n > dim_size for at, n, dim_size in zip(start, sizes, shape, strict=True)):
            raise PickleUnreadable(f"a shard of {key} extends beyond the tensor")
        chunks.append(_make_chunk(start, sizes, storage.get((key, start))))
    return IndexEntry(key, path, dtype.name, shape, tuple(chunks))


def _make_chunk(
    start: tuple[int, ...], shape: tuple[int, ...], location: Mapping[str, Any] | None
) -> IndexChunk:
    if location is None:
        return IndexChunk(start, shape)
    file, offset, length = location["relative_path"], location["offset"], location["length"]
    if not (isinstance(file, str) and _is_size(offset) and _is_size(length)) or _is_outside(file):
        raise PickleUnreadable("it refers to an invalid location")
    return IndexChunk(
        start, shape, file, offset, length, bool(location.get("transform_descriptors"))
    )


def _storage_by_key(storage_data: Any) -> dict[Any, Mapping[str, Any]]:
    """Return the location of each shard by key and start index (None if it has none)."""
    locations: dict[Any, Mapping[str, Any]] = {}
    for index, location in (storage_data or {}).items():
        if not isinstance(location, _StorageInfo):
            raise PickleUnreadable("it was written by an unsupported storage backend")
        fields = vars(index)
        locations[fields["fqn"], fields.get("offset")] = vars(location)
    return locations


def _key_path(value: Any, key: str) -> tuple[str | int, ...]:
    if (
        isinstance(value, (tuple, list))
        and value
        and all(isinstance(item, (str, int)) for item in value)
    ):
        return tuple(value)
    return (key,)


def _check_sizes(value: Any) -> tuple[int, ...]:
    if (
        not isinstance(value, tuple)
        or len(value) > _MAX_DIMENSIONS
        or not all(map(_is_size, value))
    ):
        raise PickleUnreadable("it describes an invalid tensor")
    return value


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _is_outside(file: str) -> bool:
    return file.startswith("/") or ".." in file.split("/") or "\0" in file or not file


def _return_none(*_: Any) -> None:
    return None


_METADATA = "torch.distributed.checkpoint.metadata"
_CLASSES: Mapping[str, Callable[..., Any]] = {
    f"{_METADATA}.Metadata": _DcpMetadata,
    f"{_METADATA}.MetadataIndex": _MetadataIndex,
    f"{_METADATA}.TensorStorageMetadata": _TensorMetadata,
    f"{_METADATA}.BytesStorageMetadata": _BytesMetadata,
    f"{_METADATA}.ChunkStorageMetadata": _ChunkMetadata,
    f"{_METADATA}.TensorProperties": _Properties,
    f"{_METADATA}._MEM_FORMAT_ENCODING": _return_none,
    # torch 2.1 and 2.2 took the properties from ShardedTensor's module
    "torch.distributed._shard.sharded_tensor.metadata.TensorProperties": _Properties,
    "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING": _return_none,
    "torch.distributed.checkpoint.filesystem._StorageInfo": _StorageInfo,
    "torch.Size": tuple,
}
