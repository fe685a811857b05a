"""Which format a path is of, and its reader. Each reader is a module with two functions:

``recognises(path)`` gives the format that a path is of, or None; it looks at names and first bytes alone. ``read``
gives its ``Contents``; both raise CheckpointUnreadable with one clause that says what is wrong.

A folder that holds several checkpoints of one run (``step-0000000120``, ``checkpoint-500``, ``global_step30``) stands
for the newest of them, and one that holds a single file of a checkpoint for that file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import msgspec

from holdfast.errors import CheckpointUnreadable, MissingFile
from holdfast.facts.checkpoints.contents import Contents, Format
from holdfast.facts.checkpoints.deepspeed import universal as deepspeed_universal
from holdfast.facts.checkpoints.deepspeed import zero as deepspeed
from holdfast.facts.checkpoints.distributed import dcp, hf_shards, megatron, ours, shards
from holdfast.facts.checkpoints.files import safetensors_files
from holdfast.facts.checkpoints.frameworks import accelerate, huggingface, lightning, torch_save
from holdfast.facts.checkpoints.state_dicts.dealing import Hints
from holdfast.facts.collector import without_collector

#: Every reader, one a line; of two that give a path the same format the first one reads it.
READERS: tuple[ModuleType, ...] = (
    accelerate,
    dcp,
    deepspeed,
    deepspeed_universal,
    hf_shards,
    huggingface,
    lightning,
    megatron,
    ours,
    safetensors_files,
    shards,
    torch_save,
)  # fmt: skip

#: Readers of formats that know the optimizer's parameters by number: they hear which ones the user calls frozen.
BY_NUMBER: tuple[ModuleType, ...] = (accelerate, dcp, huggingface, lightning, shards, torch_save)

_DCP = frozenset({Format.DCP})
_SINGLE = frozenset({Format.TORCH, Format.SAFETENSORS})
#: Formats whose checkpoints are made of others: what looks like both is of the former.
COVERS: Mapping[Format, frozenset[Format]] = {
    Format.HOLDFAST: _DCP,
    Format.MEGATRON: _DCP | _SINGLE,
    Format.LIGHTNING: frozenset(Format) - {Format.LIGHTNING, Format.ACCELERATE, Format.HOLDFAST},
    Format.ACCELERATE: frozenset(Format) - {Format.LIGHTNING, Format.ACCELERATE, Format.HOLDFAST},
    **{each: _SINGLE for each in Format if each.value.startswith(("fsdp", "universal", "hugging", "dcp"))},
    **{each: _SINGLE | {Format.HUGGINGFACE} for each in (Format.ZERO1, Format.ZERO2, Format.ZERO3)},
}

_NUMBERED = re.compile(r"(\D*)(\d+)\Z")
_MOST_ENTRIES = 100_000
_SHOWN = 4


class Place(msgspec.Struct, frozen=True):
    """Where a checkpoint is, and what reads it. ``note`` says how the path that was given led there."""

    path: Path
    reader: ModuleType
    format: Format
    note: str = ""


def detect(path: Path) -> Format:
    """The format of a path. Raises as :func:`find`."""
    return find(path).format


def read(path: Path, frozen: Sequence[str] = (), order: Sequence[str] = ()) -> Contents:
    """What is in the checkpoint at ``path``.

    Where its optimizer knows parameters by number, ``frozen`` are patterns of the names of those that it does not have,
    and ``order`` are the names of all as ``model.named_parameters()`` gives them.

    Raises:
        MissingFile, CheckpointUnreadable: as :func:`find`, and where nothing in it can be read.
    """
    place = find(path)
    more = {"hints": Hints(tuple(frozen), tuple(order))} if place.reader in BY_NUMBER else {}
    try:
        with without_collector():
            found: Contents = place.reader.read(place.path, **more)
    except OSError as error:
        raise CheckpointUnreadable(place.path, why=(error.strerror or str(error)).lower()) from error
    if order:
        places = {name: at for at, name in enumerate(order)}
        names = sorted(found.tensors, key=lambda name: places.get(name, len(places)))
        found = msgspec.structs.replace(found, tensors={name: found.tensors[name] for name in names})
    return msgspec.structs.replace(found, notes=(place.note, *found.notes)) if place.note else found


def find(path: Path) -> Place:
    """The one checkpoint that a path stands for.

    Raises:
        MissingFile: there is nothing.
        CheckpointUnreadable: it is of no format that is known, or of several at once.
    """
    try:
        if not path.exists():
            raise MissingFile(path, why="there is no such file or folder")
        place = _recognised(path)
        if place is None and path.is_dir():
            place = _newest(path) or _only_file(path)
    except OSError as error:
        raise CheckpointUnreadable(path, why=(error.strerror or str(error)).lower()) from error
    if place is None:
        raise CheckpointUnreadable(path, why="it is of no format that is known here", next_step=_next_step(path))
    return place


def _recognised(path: Path) -> Place | None:
    """What the readers say of the path itself. Raises CheckpointUnreadable: they differ."""
    places: dict[Format, Place] = {}
    for reader in READERS:
        form = reader.recognises(path)
        if form is not None:
            places.setdefault(form, Place(path, reader, form))
    covered = {each for found in places for each in COVERS.get(found, ())}
    exact = [place for found, place in places.items() if found not in covered]
    if len(exact) > 1:
        names = " and ".join(f"one of {place.format}" for place in exact)
        raise CheckpointUnreadable(
            path, why=f"it holds two checkpoints, {names}", next_step="move one of them into a folder of its own"
        )
    return exact[0] if exact else None


def _newest(folder: Path) -> Place | None:
    """The checkpoint of the highest number among its folders. Raises CheckpointUnreadable: there are two series."""
    series: dict[str, dict[int, Path]] = {}
    for each in _entries(folder):
        match = _NUMBERED.match(each.name)
        if match is not None and not each.name.startswith(".") and each.is_dir():
            series.setdefault(match[1], {})[int(match[2])] = each
    found: list[Place] = []
    for prefix, numbered in series.items():
        for number in sorted(numbered, reverse=True):
            place = _recognised(numbered[number])
            if place is not None:
                count = len(numbered)
                note = f"{place.path.name} is the newest of {count:,} in {folder.name or folder}" if count > 1 else ""
                found.append(Place(place.path, place.reader, place.format, note or f"it is in {prefix}{number}"))
                break
    if len(found) > 1:
        raise _several(folder, [place.path for place in found])
    return found[0] if found else None


def _only_file(folder: Path) -> Place | None:
    """The only file of a checkpoint in a folder. Raises CheckpointUnreadable: there are several."""
    found = [place for each in _entries(folder) if each.is_file() and (place := _recognised(each)) is not None]
    if len(found) > 1:
        raise _several(folder, [place.path for place in found])
    return Place(found[0].path, found[0].reader, found[0].format, f"it is in {found[0].path.name}") if found else None


def _entries(folder: Path) -> Iterator[Path]:
    """What lies in a folder, by name; of endless ones a part."""
    try:
        yield from sorted(each for each, _ in zip(folder.iterdir(), range(_MOST_ENTRIES), strict=False))
    except OSError as error:
        raise CheckpointUnreadable(folder, why=(error.strerror or str(error)).lower()) from error


def _several(folder: Path, paths: Sequence[Path]) -> CheckpointUnreadable:
    names = ", ".join(path.name for path in paths[:_SHOWN]) + (", ..." if len(paths) > _SHOWN else "")
    why = f"it holds {len(paths):,} checkpoints: {names}"
    return CheckpointUnreadable(folder, why=why, next_step="name one of them")


def _next_step(path: Path) -> str:
    return "name the folder of one checkpoint, or a file" if path.is_dir() else "name a file or folder of a checkpoint"
