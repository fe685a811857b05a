"""Reads safetensors shards that torch writes for Hugging Face, one rank per file.

Written by ``HuggingFaceStorageWriter(save_distributed=True)``
(torch/distributed/checkpoint/hf_storage.py). The file metadata holds the start of each part; the
full shape is not stored and follows from the last part.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.ckpt.contents import (
    CheckpointContents,
    CheckpointFormat,
    FileProblem,
    Tensor,
    TensorShard,
)
from holdfast.ckpt.files import safetensors_files
from holdfast.ckpt.files.unreadable_files import problem_of
from holdfast.ckpt.formats.weight_files import file_sizes
from holdfast.core.errors import CheckpointUnreadable
from holdfast.core.findings import Unknown

_SHARD = re.compile(r"shard-(\d+)-model-\d+-of-\d+\.safetensors\Z")
_INFO, _OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"
_NOTE = (
    "the shards do not record their count or the full shapes, so a missing last shard cannot be "
    "detected"
)


def detect_format(path: Path) -> CheckpointFormat | None:
    """Recognize torch's file names."""
    return CheckpointFormat.HUGGINGFACE if path.is_dir() and _shard_numbers(path) else None


def read_contents(path: Path) -> CheckpointContents:
    """Return the merged contents. Raises CheckpointUnreadable: no file can be read."""
    shard_files, problems = _shard_numbers(path), list[FileProblem]()
    parts_by_name: dict[str, list[Tensor]] = {}
    for file, number in shard_files.items():
        try:
            for tensor in _read_shard_file(path, file):
                parts_by_name.setdefault(tensor.name, []).append(tensor)
        except CheckpointUnreadable as error:
            problems.append(problem_of(error, file, rank=number - 1))
    if not parts_by_name and problems:
        raise CheckpointUnreadable(path, why=problems[0].why)
    last = max(shard_files.values())
    problems += [
        FileProblem(
            kind="missing",
            file="",
            why=f"shard {number} of at least {last} is missing",
            rank=number - 1,
        )
        for number in sorted(set(range(1, last + 1)) - set(shard_files.values()))
    ]
    tensors = {}
    for name, parts in parts_by_name.items():
        try:
            tensors[name] = _join_shards(parts)
        except ValueError as error:
            problems.append(
                FileProblem(
                    kind="mixed",
                    file=parts[0].shards[0].file if parts[0].shards else "",
                    why=str(error),
                )
            )
    return CheckpointContents(
        format=CheckpointFormat.HUGGINGFACE,
        root=str(path),
        tensors=tensors,
        step=Unknown("not recorded in safetensors files"),
        world_size=last,
        writer="torch.distributed.checkpoint",
        problems=tuple(problems),
        notes=(_NOTE,),
        files=file_sizes(path),
    )


def _read_shard_file(root: Path, file: str) -> list[Tensor]:
    """Return the tensor parts in one file, each with its start in the full tensor.

    Raises:
        CheckpointUnreadable: the file or an offset is invalid.
    """
    file_contents = safetensors_files.read_file(root / file, file)
    if file_contents.problems:
        raise CheckpointUnreadable(root / file, why=file_contents.problems[0].why)
    offsets = _shard_offsets(root / file, file_contents.metadata)
    tensors = []
    for tensor in file_contents.tensors.values():
        start = tuple(offsets.get(tensor.name, {}).get(_OFFSETS, (0,) * len(tensor.shape)))
        if len(start) != len(tensor.shape) or any(at < 0 for at in start):
            raise CheckpointUnreadable(
                root / file, why=f"it has an invalid offset for {tensor.name}"
            )
        shards = tuple(msgspec.structs.replace(shard, start=start) for shard in tensor.shards)
        tensors.append(
            msgspec.structs.replace(
                tensor, shards=shards or (_empty_shard(file, start, tensor.shape),)
            )
        )
    return tensors


def _empty_shard(file: str, start: tuple[int, ...], shape: tuple[int, ...]) -> TensorShard:
    return TensorShard(file=file, offset=0, shape=shape, start=start)


def _join_shards(parts: list[Tensor]) -> Tensor:
    """Join the parts of one tensor. Raises ValueError: they do not fit."""
    first = parts[0]
    if any((part.dtype, len(part.shape)) != (first.dtype, len(first.shape)) for part in parts):
        raise ValueError(
            f"{first.name} has different dtypes or numbers of dimensions in different shards"
        )
    shards = [shard for part in parts for shard in part.shards]
    shape = tuple(
        max(shard.start[axis] + shard.shape[axis] for shard in shards)
        for axis in range(len(first.shape))
    )
    if sum(shard.numel for shard in shards) < math.prod(shape):
        raise ValueError(
            f"the parts of {first.name} do not cover it: a shard is missing or from another save"
        )
    return msgspec.structs.replace(
        first, shape=shape, shards=tuple(shard for shard in shards if shard.numel)
    )


def _shard_offsets(path: Path, metadata: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    try:
        return msgspec.json.decode(metadata.get(_INFO, "{}"), type=dict[str, dict[str, list[int]]])
    except msgspec.DecodeError as error:
        raise CheckpointUnreadable(
            path, why=f"its metadata does not say where its parts start: {error}"
        ) from error


def _shard_numbers(path: Path) -> dict[str, int]:
    """Return the shard files with their numbers, in order."""
    numbers = {
        item.name: int(match[1]) for item in path.iterdir() if (match := _SHARD.match(item.name))
    }
    return dict(sorted(numbers.items(), key=lambda item: (item[1], item[0])))
