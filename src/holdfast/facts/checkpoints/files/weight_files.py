"""The files of a model's weights in a folder: one, or shards with an index; of safetensors or of torch.save."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Gap, Tensor
from holdfast.facts.checkpoints.files import safetensors_files, torch_legacy
from holdfast.facts.checkpoints.files.gaps import gap_of
from holdfast.facts.checkpoints.state_dicts import model as state_dicts
from holdfast.facts.checkpoints.state_dicts.values import Source
from holdfast.findings import Unknown

INDEX_SUFFIX = ".index.json"
#: What the libraries call a model's weights: transformers, diffusers, peft, Mistral; the first that is there counts.
STEMS = ("model", "diffusion_pytorch_model", "adapter_model", "pytorch_model", "consolidated")
_SUFFIXES = (safetensors_files.SUFFIX, ".bin")
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.safetensors|\.bin)\Z")
_MOST_INDEX = 256 << 20
_SHOWN = 3


class Weights(msgspec.Struct):
    """The tensors of a model by name, and what was found about them; ``ordered``: they are in the model's order."""

    tensors: dict[str, Tensor] = msgspec.field(default_factory=dict)
    ties: dict[str, str] = msgspec.field(default_factory=dict)
    values: dict[str, Any] = msgspec.field(default_factory=dict)
    step: int | Unknown = Unknown("the format does not say")
    ordered: bool = False
    gaps: list[Gap] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


def find(folder: Path) -> list[str]:
    """The sets of weights in a folder, by the name of their file or index; the one that counts is the first."""
    names = {each.name for each in folder.iterdir()}
    known = [
        name for suffix in _SUFFIXES for stem in STEMS for name in (f"{stem}{suffix}", f"{stem}{suffix}{INDEX_SUFFIX}")
    ]  # fmt: skip
    found = [name for name in known if name in names]
    found += sorted(
        name for name in names if name.endswith((".safetensors.index.json", ".bin.index.json")) and name not in known
    )
    if not found:
        found = sorted({f"{match[1]}{match[4]}" for name in names if (match := _SHARD.match(name))})
    return found


def read_weights(folder: Path) -> Weights:
    """The first set of weights in a folder. Raises CheckpointUnreadable: it has none that can be read."""
    sets = find(folder)
    if not sets:
        raise CheckpointUnreadable(folder, why="there are no files of weights in it")
    first, made = sets[0], Weights()
    if first.endswith(INDEX_SUFFIX):
        _by_index(folder, first, made)
    elif (folder / first).is_file():
        read_into(folder, first, made)
    else:
        _without_index(folder, first, made)
    if len(sets) > 1:
        made.notes.append(f"{first} is read; {', '.join(sets[1:])} is there, too, and is not looked at")
    if not made.tensors and made.gaps:
        raise CheckpointUnreadable(folder, why=f"{made.gaps[0].file}: {made.gaps[0].why}")
    return made


def read_into(folder: Path, name: str, made: Weights) -> None:
    """Put the tensors of one file among the others; what cannot be read is a gap."""
    try:
        if name.endswith(safetensors_files.SUFFIX):
            _take_safetensors(safetensors_files.read_file(folder / name, name), made)
        else:
            _take_torch(Source(torch_legacy.read(folder / name), name), made)
    except CheckpointUnreadable as error:
        made.gaps.append(gap_of(error, name))


def _take_safetensors(file: safetensors_files.File, made: Weights) -> None:
    made.ordered = file.ordered
    made.step = file.step if isinstance(file.step, int) else made.step
    made.tensors |= file.tensors
    made.ties |= file.ties
    made.values |= safetensors_files.other_metadata(file)
    made.gaps += file.gaps


def _take_torch(source: Source, made: Weights) -> None:
    value = source.file.value
    if isinstance(value, Mapping) and (key := state_dicts.key_of(value)) is not None:
        value = value[key]
    model = state_dicts.model_of(source, value)
    made.ordered = True
    made.tensors |= model.tensors
    made.ties |= model.ties
    made.gaps += model.gaps


def _by_index(folder: Path, name: str, made: Weights) -> None:
    index = _index(folder, name)
    by_file: dict[str, list[str]] = {}
    for tensor, file in index.weight_map.items():
        by_file.setdefault(file, []).append(tensor)
    for file, tensors in by_file.items():
        if not _is_inside(file):
            made.gaps.append(
                Gap(kind="unreadable", file=name, why=f"it names {file[:80]!r}, which is no file beside it")
            )
        elif not (folder / file).is_file():
            listed = ", ".join(tensors[:_SHOWN]) + (", ..." if len(tensors) > _SHOWN else "")
            made.gaps.append(
                Gap(kind="missing", file=file, why=f"it has {len(tensors):,} tensors by the index: {listed}")
            )
        else:
            read_into(folder, file, made)
            _compare(file, tensors, made)
    said = [each for each in index.weight_map if each in made.tensors]
    made.ordered = said != sorted(said)
    if made.ordered:
        made.tensors = {each: made.tensors[each] for each in (*said, *(set(made.tensors) - set(said)))}
    about = {key: str(value) for key, value in index.metadata.items()}
    tied = {key: value for key, value in about.items() if value in made.tensors and key not in made.tensors}
    made.ties |= tied
    if about.get("step", "").isdecimal():
        made.step = int(about["step"])


def _compare(file: str, expected: list[str], made: Weights) -> None:
    """Hold what a shard has against what the index says."""
    lost = [each for each in expected if each not in made.tensors and each not in made.ties]
    if lost and not any(gap.file == file for gap in made.gaps):
        listed = ", ".join(lost[:_SHOWN]) + (", ..." if len(lost) > _SHOWN else "")
        made.gaps.append(Gap(kind="missing", file=file, why=f"the index says that {listed} is in it, and it is not"))


def _without_index(folder: Path, name: str, made: Weights) -> None:
    """Shards whose index is gone: their names say how many there are."""
    stem, _, suffix = name.rpartition(".")
    shards: dict[int, dict[int, str]] = {}
    for each in sorted(folder.iterdir()):
        match = _SHARD.match(each.name)
        if match and (match[1], match[4]) == (stem, f".{suffix}"):
            shards.setdefault(int(match[3]), {})[int(match[2])] = each.name
    made.gaps.append(Gap(kind="missing", file=name + INDEX_SUFFIX, why="the index of the shards is not there"))
    if len(shards) > 1:
        counts = " and ".join(str(count) for count in sorted(shards))
        raise CheckpointUnreadable(folder, why=f"it holds shards of two checkpoints, of {counts} files, and no index")
    for count, files in shards.items():
        for number in range(1, min(count, 100_000) + 1):
            if number in files:
                read_into(folder, files[number], made)
            else:
                file = f"{stem}-{number:05}-of-{count:05}.{suffix}"
                made.gaps.append(Gap(kind="missing", file=file, why="the names of the others say that it was there"))


def _index(folder: Path, name: str) -> _Index:
    path = folder / name
    try:
        if not path.is_file():
            raise CheckpointUnreadable(path, why="the index is no file")
        if path.stat().st_size > _MOST_INDEX:
            raise CheckpointUnreadable(path, why=f"it has more than {_MOST_INDEX >> 20} MiB")
        return msgspec.json.decode(path.read_bytes(), type=_Index)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise CheckpointUnreadable(path, why=f"the index cannot be read: {error}") from error


def _is_inside(file: str) -> bool:
    path = PurePosixPath(file)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in file
