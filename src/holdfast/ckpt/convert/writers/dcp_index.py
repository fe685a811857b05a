"""Generates the index of torch.distributed.checkpoint (``.metadata``) without torch.

Classes: torch/distributed/checkpoint/metadata.py, with the fields common to torch 2.3 to 2.13.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.ckpt.convert.pickles import ReducedCall, dumps, stand_in_class, stand_in_instance

FILE = ".metadata"
VERSION = "1.0.0"
_METADATA = "torch.distributed.checkpoint.metadata"
_INDEX = stand_in_class(_METADATA, "MetadataIndex")
_CHUNK = stand_in_class(_METADATA, "ChunkStorageMetadata")
_STORAGE_INFO = stand_in_class("torch.distributed.checkpoint.filesystem", "_StorageInfo")
_SIZE = stand_in_class("torch", "Size")


class StoredChunk(msgspec.Struct, frozen=True):
    """Where a shard of a tensor, or a value (``start`` is None), is stored."""

    start: tuple[int, ...] | None
    shape: tuple[int, ...]
    file: str
    offset: int
    length: int


class WrittenIndexEntry(msgspec.Struct, frozen=True):
    """One key: its path in the nested state_dict; a value that is not a tensor has dtype ''."""

    path: tuple[str | int, ...]
    dtype: str
    shape: tuple[int, ...]
    shards: tuple[StoredChunk, ...]

    @property
    def key(self) -> str:
        """Return the path as torch joins it (_nested_dict.py)."""
        return ".".join(map(str, self.path))


def build_index(entries: Iterable[WrittenIndexEntry]) -> bytes:
    """Return the content of the index."""
    metadata_by_key: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    storage: dict[Any, Any] = {}
    for entry in entries:
        metadata_by_key[entry.key] = (
            _tensor_metadata(entry)
            if entry.dtype
            else stand_in_instance(stand_in_class(_METADATA, "BytesStorageMetadata"), {})
        )
        paths[entry.key] = entry.path
        for number, shard in enumerate(entry.shards):
            index: dict[str, Any] = {"fqn": entry.key, "index": number if entry.dtype else None}
            index |= {} if shard.start is None else {"offset": _size(shard.start)}
            location = {"relative_path": shard.file, "offset": shard.offset, "length": shard.length}
            storage[stand_in_instance(_INDEX, index)] = stand_in_instance(_STORAGE_INFO, location)
    index_fields = {
        "state_dict_metadata": metadata_by_key,
        "planner_data": paths,
        "storage_data": storage,
        "storage_meta": None,
        "version": VERSION,
    }
    return dumps(stand_in_instance(stand_in_class(_METADATA, "Metadata"), index_fields))


def _tensor_metadata(entry: WrittenIndexEntry) -> Any:
    layout = ReducedCall(stand_in_class("torch.serialization", "_get_layout"), ("torch.strided",))
    contiguous = ReducedCall(stand_in_class(_METADATA, "_MEM_FORMAT_ENCODING"), (0,))
    properties = ReducedCall(
        stand_in_class(_METADATA, "TensorProperties"),
        (),
        (stand_in_class("torch", entry.dtype), layout, False, contiguous, False),
    )
    chunks = [
        stand_in_instance(
            _CHUNK, {"offsets": _size(shard.start or ()), "sizes": _size(shard.shape)}
        )
        for shard in entry.shards
    ]
    about = {"properties": properties, "size": _size(entry.shape), "chunks": chunks}
    return stand_in_instance(stand_in_class(_METADATA, "TensorStorageMetadata"), about)


def _size(sizes: tuple[int, ...]) -> ReducedCall:
    return ReducedCall(_SIZE, (sizes,))
