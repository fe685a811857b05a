"""The index of torch.distributed.checkpoint (``.metadata``), made without torch.

Its classes are those of torch/distributed/checkpoint/metadata.py, with the fields that torch 2.3 to 2.13 all know.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.actions.conversion.pickles import Call, dumps, instance, named

FILE = ".metadata"
VERSION = "1.0.0"
_METADATA = "torch.distributed.checkpoint.metadata"
_INDEX = named(_METADATA, "MetadataIndex")
_CHUNK = named(_METADATA, "ChunkStorageMetadata")
_PLACE = named("torch.distributed.checkpoint.filesystem", "_StorageInfo")
_SIZE = named("torch", "Size")


class Piece(msgspec.Struct, frozen=True):
    """Where a part of a tensor, or a value (``start`` is None), stands."""

    start: tuple[int, ...] | None
    shape: tuple[int, ...]
    file: str
    offset: int
    length: int


class Entry(msgspec.Struct, frozen=True):
    """One key: its path in the nested state_dict; a value that is no tensor has dtype ''."""

    path: tuple[str | int, ...]
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def key(self) -> str:
        """The path as torch joins it (_nested_dict.py)."""
        return ".".join(map(str, self.path))


def made(entries: Iterable[Entry]) -> bytes:
    """The content of the index."""
    listed: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    places: dict[Any, Any] = {}
    for entry in entries:
        listed[entry.key] = _tensor(entry) if entry.dtype else instance(named(_METADATA, "BytesStorageMetadata"), {})
        paths[entry.key] = entry.path
        for number, piece in enumerate(entry.pieces):
            index: dict[str, Any] = {"fqn": entry.key, "index": number if entry.dtype else None}
            index |= {} if piece.start is None else {"offset": _size(piece.start)}
            where = {"relative_path": piece.file, "offset": piece.offset, "length": piece.length}
            places[instance(_INDEX, index)] = instance(_PLACE, where)
    whole = {
        "state_dict_metadata": listed, "planner_data": paths, "storage_data": places, "storage_meta": None,
        "version": VERSION,
    }  # fmt: skip
    return dumps(instance(named(_METADATA, "Metadata"), whole))


def _tensor(entry: Entry) -> Any:
    layout = Call(named("torch.serialization", "_get_layout"), ("torch.strided",))
    contiguous = Call(named(_METADATA, "_MEM_FORMAT_ENCODING"), (0,))
    properties = Call(
        named(_METADATA, "TensorProperties"), (), (named("torch", entry.dtype), layout, False, contiguous, False)
    )
    chunks = [
        instance(_CHUNK, {"offsets": _size(piece.start or ()), "sizes": _size(piece.shape)}) for piece in entry.pieces
    ]
    about = {"properties": properties, "size": _size(entry.shape), "chunks": chunks}
    return instance(named(_METADATA, "TensorStorageMetadata"), about)


def _size(sizes: tuple[int, ...]) -> Call:
    return Call(_SIZE, (sizes,))
