"""Shards that torch writes for Hugging Face: safetensors files, each with parts of tensors, of one rank each.

``HuggingFaceStorageWriter(save_distributed=True)`` of torch/distributed/checkpoint/hf_storage.py makes them. Where a
part begins stands in the file's metadata; how large the whole is stands nowhere, and follows from the last part.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Contents, Format, Gap, Piece, Tensor
from holdfast.facts.checkpoints.files import safetensors_files
from holdfast.facts.checkpoints.files.gaps import gap_of
from holdfast.findings import Unknown

_SHARD = re.compile(r"shard-(\d+)-model-\d+-of-\d+\.safetensors\Z")
_INFO, _OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"
_NOTE = "the shards do not say how many they are, nor how large the whole tensors: that the last is there is not known"


def recognises(path: Path) -> Format | None:
    """By the names that torch gives them."""
    return Format.HUGGINGFACE if path.is_dir() and _shards(path) else None


def read(path: Path) -> Contents:
    """What the shards hold together. Raises CheckpointUnreadable: none of them can be read."""
    shards, gaps = _shards(path), list[Gap]()
    found: dict[str, list[Tensor]] = {}
    for file, number in shards.items():
        try:
            for tensor in _parts(path, file):
                found.setdefault(tensor.name, []).append(tensor)
        except CheckpointUnreadable as error:
            gaps.append(gap_of(error, file, rank=number - 1))
    if not found and gaps:
        raise CheckpointUnreadable(path, why=gaps[0].why)
    last = max(shards.values())
    gaps += [
        Gap(kind="missing", file="", why=f"shard {number} of at least {last} is not there", rank=number - 1)
        for number in sorted(set(range(1, last + 1)) - set(shards.values()))
    ]
    tensors = {}
    for name, parts in found.items():
        try:
            tensors[name] = _joined(parts)
        except ValueError as error:
            gaps.append(Gap(kind="mixed", file=parts[0].pieces[0].file if parts[0].pieces else "", why=str(error)))
    return Contents(
        format=Format.HUGGINGFACE, root=str(path), tensors=tensors, step=Unknown("safetensors files do not say"),
        world_size=last, writer="torch.distributed.checkpoint", gaps=tuple(gaps), notes=(_NOTE,),
        files={each.name: each.stat().st_size for each in sorted(path.iterdir()) if each.is_file()},
    )  # fmt: skip


def _parts(root: Path, file: str) -> list[Tensor]:
    """The parts of tensors in one file, each piece at its place in the whole. Raises CheckpointUnreadable."""
    found = safetensors_files.read_file(root / file, file)
    if found.gaps:
        raise CheckpointUnreadable(root / file, why=found.gaps[0].why)
    places = _places(root / file, found.metadata)
    made = []
    for tensor in found.tensors.values():
        start = tuple(places.get(tensor.name, {}).get(_OFFSETS, (0,) * len(tensor.shape)))
        if len(start) != len(tensor.shape) or any(at < 0 for at in start):
            raise CheckpointUnreadable(root / file, why=f"it places {tensor.name} where that cannot be")
        pieces = tuple(msgspec.structs.replace(piece, start=start) for piece in tensor.pieces)
        made.append(msgspec.structs.replace(tensor, pieces=pieces or (_nothing(file, start, tensor.shape),)))
    return made


def _nothing(file: str, start: tuple[int, ...], shape: tuple[int, ...]) -> Piece:
    return Piece(file=file, offset=0, shape=shape, start=start)


def _joined(parts: list[Tensor]) -> Tensor:
    """One tensor of its parts. Raises ValueError: they do not fit together."""
    first = parts[0]
    if any((part.dtype, len(part.shape)) != (first.dtype, len(first.shape)) for part in parts):
        raise ValueError(f"{first.name} is of another dtype or has other dimensions in another shard")
    pieces = [piece for part in parts for piece in part.pieces]
    shape = tuple(max(piece.start[axis] + piece.shape[axis] for piece in pieces) for axis in range(len(first.shape)))
    if sum(piece.numel for piece in pieces) < math.prod(shape):
        raise ValueError(f"the parts of {first.name} do not cover it: a shard is missing, or of another save")
    return msgspec.structs.replace(first, shape=shape, pieces=tuple(piece for piece in pieces if piece.numel))


def _places(path: Path, metadata: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    try:
        return msgspec.json.decode(metadata.get(_INFO, "{}"), type=dict[str, dict[str, list[int]]])
    except msgspec.DecodeError as error:
        raise CheckpointUnreadable(path, why=f"its metadata does not say where its parts begin: {error}") from error


def _shards(path: Path) -> dict[str, int]:
    """The number of each shard by its name, in their order."""
    found = {each.name: int(match[1]) for each in path.iterdir() if (match := _SHARD.match(each.name))}
    return dict(sorted(found.items(), key=lambda each: (each[1], each[0])))
