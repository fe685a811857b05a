"""Reads a model's weight files in a folder: one file or indexed shards, safetensors or torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from holdfast.ckpt.contents import FileProblem, Tensor
from holdfast.ckpt.files import safetensors_files, torch_legacy
from holdfast.ckpt.files.unreadable_files import problem_of
from holdfast.ckpt.state_dicts import model as state_dicts
from holdfast.ckpt.state_dicts.values import TorchSource
from holdfast.core.errors import CheckpointUnreadable
from holdfast.core.findings import Unknown

INDEX_SUFFIX = ".index.json"
#: File stems used by transformers, diffusers, peft and Mistral; the first found is used.
STEMS = ("model", "diffusion_pytorch_model", "adapter_model", "pytorch_model", "consolidated")
_SUFFIXES = (safetensors_files.SUFFIX, ".bin")
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.safetensors|\.bin)\Z")
_MAX_INDEX_BYTES = 256 << 20
_SHOWN = 3


class ModelWeights(msgspec.Struct):
    """The tensors of a model by name. ``ordered``: they are in the model's order."""

    tensors: dict[str, Tensor] = msgspec.field(default_factory=dict)
    ties: dict[str, str] = msgspec.field(default_factory=dict)
    values: dict[str, Any] = msgspec.field(default_factory=dict)
    step: int | Unknown = Unknown("not recorded in this format")
    ordered: bool = False
    problems: list[FileProblem] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


def find_weight_sets(folder: Path) -> list[str]:
    """Return the weight sets of a folder by file or index name; the first is used."""
    names = {entry.name for entry in folder.iterdir()}
    known = [
        name
        for suffix in _SUFFIXES
        for stem in STEMS
        for name in (f"{stem}{suffix}", f"{stem}{suffix}{INDEX_SUFFIX}")
    ]
    sets = [name for name in known if name in names]
    sets += sorted(
        name
        for name in names
        if name.endswith((".safetensors.index.json", ".bin.index.json")) and name not in known
    )
    if not sets:
        sets = sorted({f"{match[1]}{match[4]}" for name in names if (match := _SHARD.match(name))})
    return sets


def read_weights(folder: Path) -> ModelWeights:
    """Read the first weight set of a folder.

    Raises:
        CheckpointUnreadable: the folder has no readable weights.
    """
    sets = find_weight_sets(folder)
    if not sets:
        raise CheckpointUnreadable(folder, why="it contains no weight files")
    first, weights = sets[0], ModelWeights()
    if first.endswith(INDEX_SUFFIX):
        _read_by_index(folder, first, weights)
    elif (folder / first).is_file():
        add_file(folder, first, weights)
    else:
        _read_without_index(folder, first, weights)
    if len(sets) > 1:
        weights.notes.append(f"reading {first}; ignoring {', '.join(sets[1:])}")
    if not weights.tensors and weights.problems:
        raise CheckpointUnreadable(
            folder, why=f"{weights.problems[0].file}: {weights.problems[0].why}"
        )
    return weights


def add_file(folder: Path, name: str, weights: ModelWeights) -> None:
    """Add the tensors of one file; record a problem if it cannot be read."""
    try:
        if name.endswith(safetensors_files.SUFFIX):
            _add_safetensors(safetensors_files.read_file(folder / name, name), weights)
        else:
            _add_torch(TorchSource(torch_legacy.read_torch_file(folder / name), name), weights)
    except CheckpointUnreadable as error:
        weights.problems.append(problem_of(error, name))


def _add_safetensors(file: safetensors_files.SafetensorsFile, weights: ModelWeights) -> None:
    weights.ordered = file.ordered
    weights.step = file.step if isinstance(file.step, int) else weights.step
    weights.tensors |= file.tensors
    weights.ties |= file.ties
    weights.values |= safetensors_files.other_metadata(file)
    weights.problems += file.problems


def _add_torch(source: TorchSource, weights: ModelWeights) -> None:
    value = source.file.value
    if isinstance(value, Mapping) and (key := state_dicts.find_model_key(value)) is not None:
        value = value[key]
    model = state_dicts.collect_model(source, value)
    weights.ordered = True
    weights.tensors |= model.tensors
    weights.ties |= model.ties
    weights.problems += model.problems


def _read_by_index(folder: Path, name: str, weights: ModelWeights) -> None:
    index = _read_index(folder, name)
    by_file: dict[str, list[str]] = {}
    for tensor, file in index.weight_map.items():
        by_file.setdefault(file, []).append(tensor)
    for file, tensors in by_file.items():
        if not _is_inside(file):
            weights.problems.append(
                FileProblem(
                    kind="unreadable",
                    file=name,
                    why=f"it references {file[:80]!r}, which is not a file in this folder",
                )
            )
        elif not (folder / file).is_file():
            listed = ", ".join(tensors[:_SHOWN]) + (", ..." if len(tensors) > _SHOWN else "")
            weights.problems.append(
                FileProblem(
                    kind="missing",
                    file=file,
                    why=f"the index lists {len(tensors):,} tensors in it: {listed}",
                )
            )
        else:
            add_file(folder, file, weights)
            _check_against_index(file, tensors, weights)
    indexed = [name for name in index.weight_map if name in weights.tensors]
    weights.ordered = indexed != sorted(indexed)
    if weights.ordered:
        weights.tensors = {
            name: weights.tensors[name]
            for name in (*indexed, *(set(weights.tensors) - set(indexed)))
        }
    about = {key: str(value) for key, value in index.metadata.items()}
    tied = {
        key: value
        for key, value in about.items()
        if value in weights.tensors and key not in weights.tensors
    }
    weights.ties |= tied
    if about.get("step", "").isdecimal():
        weights.step = int(about["step"])


def _check_against_index(file: str, expected: list[str], weights: ModelWeights) -> None:
    """Record a problem if a shard file lacks tensors that the index lists."""
    lost = [name for name in expected if name not in weights.tensors and name not in weights.ties]
    if lost and not any(problem.file == file for problem in weights.problems):
        listed = ", ".join(lost[:_SHOWN]) + (", ..." if len(lost) > _SHOWN else "")
        weights.problems.append(
            FileProblem(
                kind="missing",
                file=file,
                why=f"the index lists {listed} in it, but the file does not contain it",
            )
        )


def _read_without_index(folder: Path, name: str, weights: ModelWeights) -> None:
    """Read shards without their index; their file names give the count."""
    stem, _, suffix = name.rpartition(".")
    shards: dict[int, dict[int, str]] = {}
    for entry in sorted(folder.iterdir()):
        match = _SHARD.match(entry.name)
        if match and (match[1], match[4]) == (stem, f".{suffix}"):
            shards.setdefault(int(match[3]), {})[int(match[2])] = entry.name
    weights.problems.append(
        FileProblem(kind="missing", file=name + INDEX_SUFFIX, why="the shard index is missing")
    )
    if len(shards) > 1:
        counts = " and ".join(str(count) for count in sorted(shards))
        raise CheckpointUnreadable(
            folder, why=f"it contains shards of two checkpoints ({counts} files) and no index"
        )
    for count, files in shards.items():
        for number in range(1, min(count, 100_000) + 1):
            if number in files:
                add_file(folder, files[number], weights)
            else:
                file = f"{stem}-{number:05}-of-{count:05}.{suffix}"
                weights.problems.append(
                    FileProblem(
                        kind="missing", file=file, why="implied by the names of the other shards"
                    )
                )


def _read_index(folder: Path, name: str) -> _Index:
    path = folder / name
    try:
        if not path.is_file():
            raise CheckpointUnreadable(path, why="the index is not a regular file")
        if path.stat().st_size > _MAX_INDEX_BYTES:
            raise CheckpointUnreadable(path, why=f"it is larger than {_MAX_INDEX_BYTES >> 20} MiB")
        return msgspec.json.decode(path.read_bytes(), type=_Index)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise CheckpointUnreadable(path, why=f"invalid index: {error}") from error


def _is_inside(file: str) -> bool:
    path = PurePosixPath(file)
    return (
        bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in file
    )


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the files in the folder with their sizes."""
    return {
        entry.name: entry.stat().st_size for entry in sorted(folder.iterdir()) if entry.is_file()
    }
