"""The index of torch.distributed.checkpoint (``.metadata``): which pieces of which tensors stand where.

The form is that of torch/distributed/checkpoint/metadata.py and filesystem.py (``_StorageInfo``), torch 2.1 to 2.13. It
is a pickle that torch itself loads without any wall. Here nothing in it runs, and no class of torch is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import ITEMSIZE
from holdfast.facts.checkpoints.files.torch_files import open_binary
from holdfast.facts.checkpoints.files.torch_pickle import MOST_BYTES, Dtype, Refused, Unreadable, loads

FILE = ".metadata"
_MOST_DIMENSIONS = 64
#: What a piece takes in the pickle at least: a list that many tensors share would be no small file's doing otherwise.
_LEAST_BYTES = 8


class _Closed(type):
    """A pickle may set attributes of instances, never of these classes."""

    def __setattr__(cls, name: str, value: object) -> None:
        message = "it sets an attribute of a class"
        raise Unreadable(message)


class _Kept(metaclass=_Closed):
    """An object of the index: its attributes. Plain, so that the unpickler fills it in C."""


class _Index(_Kept):
    pass


class _Place(_Kept):
    pass


class _Chunk(_Kept):
    pass


class _Tensor(_Kept):
    pass


class _Bytes(_Kept):
    pass


class _Whole(_Kept):
    pass


class _Properties(metaclass=_Closed):
    """Of a tensor; a tuple whose first is the dtype."""

    dtype: Any = None

    def __setstate__(self, state: Any) -> None:
        """Keep the dtype."""
        self.dtype = state[0] if isinstance(state, tuple) and state else None


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """A box of a tensor, or a value that is none: ``length`` bytes at ``offset`` of a file. ``file`` '': nowhere."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    file: str = ""
    offset: int = 0
    length: int = 0
    packed: bool = False


class Entry(msgspec.Struct, frozen=True):
    """One key: its path in the nested state_dict, and for a tensor its dtype and shape (a value has dtype '')."""

    key: str
    path: tuple[str | int, ...]
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


def read(path: Path) -> tuple[Entry, ...]:
    """What an index lists, in the order of the state_dict that was saved.

    Raises:
        CheckpointUnreadable: it is none, is cut short, or names what no index needs (a ``Refused`` is its cause).
    """
    with open_binary(path) as stream:
        data = stream.read(MOST_BYTES + 1)
    try:
        return tuple(_entries(vars(_whole(data)), len(data) // _LEAST_BYTES))
    except Refused as error:
        raise CheckpointUnreadable(path, why=str(error)) from error
    except (Unreadable, ValueError, TypeError, KeyError, AttributeError) as error:
        why = str(error) if isinstance(error, Unreadable) else f"it does not fit together ({type(error).__name__})"
        raise CheckpointUnreadable(path, why=f"its index cannot be read: {why}") from error


def merged(indexes: Iterable[tuple[Entry, ...]]) -> tuple[Entry, ...]:
    """One index of those that each rank wrote for itself (saved without collectives)."""
    found: dict[str, Entry] = {}
    for entries in indexes:
        for entry in entries:
            known = found.get(entry.key)
            chunks = entry.chunks if known is None else (*known.chunks, *entry.chunks)
            found[entry.key] = msgspec.structs.replace(entry, chunks=chunks)
    return tuple(found.values())


def _whole(data: bytes) -> _Whole:
    if len(data) > MOST_BYTES:
        raise Unreadable(f"it has more than {MOST_BYTES >> 20} MiB")
    found = loads(data, _OURS).value
    if not isinstance(found, _Whole):
        raise Unreadable("it is no index of torch.distributed.checkpoint")
    return found


def _entries(whole: Mapping[str, Any], most: int) -> Iterable[Entry]:
    listed = whole["state_dict_metadata"]
    paths = whole.get("planner_data")
    paths = paths if isinstance(paths, dict) else {}
    places = _places(whole.get("storage_data"))
    order = [*(key for key in paths if key in listed), *(key for key in listed if key not in paths)]
    for key in order:
        if not isinstance(key, str):
            raise Unreadable("a key of it is no text")
        about, path = listed[key], _path(paths.get(key), key)
        if isinstance(about, _Tensor):
            most -= len(about.chunks)  # type: ignore[attr-defined]
            if most < 0:
                raise Unreadable("it has more pieces than it has room for")
            yield _tensor(key, path, vars(about), places)
        else:
            yield Entry(key, path, "", (), (_chunk((), (), places.get((key, None)) or places.get((key, ()))),))


def _tensor(key: str, path: tuple[str | int, ...], about: Mapping[str, Any], places: Mapping[Any, Any]) -> Entry:
    dtype, shape = about["properties"].dtype, _sizes(about["size"])
    if not isinstance(dtype, Dtype) or dtype.name not in ITEMSIZE:
        raise Unreadable(f"{key} is of a dtype that is not known here")
    chunks = []
    for each in about["chunks"]:
        start, sizes = _sizes(each.offsets), _sizes(each.sizes)
        if not len(start) == len(sizes) == len(shape):
            raise Unreadable(f"a piece of {key} has other dimensions than it")
        if any(at + n > whole for at, n, whole in zip(start, sizes, shape, strict=True)):
            raise Unreadable(f"a piece of {key} reaches beyond it")
        chunks.append(_chunk(start, sizes, places.get((key, start))))
    return Entry(key, path, dtype.name, shape, tuple(chunks))


def _chunk(start: tuple[int, ...], shape: tuple[int, ...], place: Mapping[str, Any] | None) -> Chunk:
    if place is None:
        return Chunk(start, shape)
    file, offset, length = place["relative_path"], place["offset"], place["length"]
    if not (isinstance(file, str) and _count(offset) and _count(length)) or _outside(file):
        raise Unreadable("it names a place that cannot be")
    return Chunk(start, shape, file, offset, length, bool(place.get("transform_descriptors")))


def _places(given: Any) -> dict[Any, Mapping[str, Any]]:
    """Where each piece stands, by key and index of its first element (None where the index has none)."""
    found: dict[Any, Mapping[str, Any]] = {}
    for index, place in (given or {}).items():
        if not isinstance(place, _Place):
            raise Unreadable("it was written by a storage that is not known here")
        about = vars(index)
        found[about["fqn"], about.get("offset")] = vars(place)
    return found


def _path(given: Any, key: str) -> tuple[str | int, ...]:
    if isinstance(given, (tuple, list)) and given and all(isinstance(each, (str, int)) for each in given):
        return tuple(given)
    return (key,)


def _sizes(given: Any) -> tuple[int, ...]:
    if not isinstance(given, tuple) or len(given) > _MOST_DIMENSIONS or not all(map(_count, given)):
        raise Unreadable("it describes a tensor that cannot be")
    return given


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _outside(file: str) -> bool:
    return file.startswith("/") or ".." in file.split("/") or "\0" in file or not file


def _nothing(*_: Any) -> None:
    return None


_METADATA = "torch.distributed.checkpoint.metadata"
_OURS: Mapping[str, Callable[..., Any]] = {
    f"{_METADATA}.Metadata": _Whole,
    f"{_METADATA}.MetadataIndex": _Index,
    f"{_METADATA}.TensorStorageMetadata": _Tensor,
    f"{_METADATA}.BytesStorageMetadata": _Bytes,
    f"{_METADATA}.ChunkStorageMetadata": _Chunk,
    f"{_METADATA}.TensorProperties": _Properties,
    f"{_METADATA}._MEM_FORMAT_ENCODING": _nothing,
    # torch 2.1 and 2.2 had the properties, and torch 2.0 the pieces, among those of ShardedTensor
    "torch.distributed._shard.sharded_tensor.metadata.TensorProperties": _Properties,
    "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING": _nothing,
    "torch.distributed.checkpoint.filesystem._StorageInfo": _Place,
    "torch.Size": tuple,
}
