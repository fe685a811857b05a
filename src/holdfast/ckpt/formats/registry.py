"""Detects the format of a path and selects its reader.

Each reader is a module with two functions. ``detect_format(path)`` returns the format or None, from
names and first bytes only; ``read_contents(path)`` returns the ``CheckpointContents``. Both raise
CheckpointUnreadable with one clause that states the problem.

A folder with several checkpoints of one run (``step-0000000120``, ``checkpoint-500``,
``global_step30``) stands for the newest; a folder with a single checkpoint file stands for that
file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import msgspec

from holdfast.ckpt.contents import CheckpointContents, CheckpointFormat
from holdfast.ckpt.files import safetensors_files, size_limits
from holdfast.ckpt.formats.deepspeed import universal as deepspeed_universal
from holdfast.ckpt.formats.deepspeed import zero as deepspeed
from holdfast.ckpt.formats.distributed import dcp, hf_shards, megatron, rank_files
from holdfast.ckpt.formats.distributed import holdfast as distributed_holdfast
from holdfast.ckpt.formats.frameworks import accelerate, huggingface, lightning, torch_save
from holdfast.ckpt.state_dicts.optimizer_params import MappingHints
from holdfast.core.errors import CheckpointUnreadable, MissingFile
from holdfast.core.gc_pause import gc_paused
from holdfast.core.text import os_error_reason

#: All readers; if two detect the same format, the first one reads it.
READERS: tuple[ModuleType, ...] = (
    accelerate,
    dcp,
    deepspeed,
    deepspeed_universal,
    hf_shards,
    huggingface,
    lightning,
    megatron,
    distributed_holdfast,
    safetensors_files,
    rank_files,
    torch_save,
)  # fmt: skip

#: Readers of formats that may number optimizer parameters; they accept MappingHints.
NUMBERED_READERS: tuple[ModuleType, ...] = (
    accelerate,
    dcp,
    huggingface,
    lightning,
    rank_files,
    torch_save,
)

_DCP = frozenset({CheckpointFormat.DCP})
_SINGLE = frozenset({CheckpointFormat.TORCH, CheckpointFormat.SAFETENSORS})
#: Formats that contain others: a path that matches both has the former.
CONTAINED_FORMATS: Mapping[CheckpointFormat, frozenset[CheckpointFormat]] = {
    CheckpointFormat.HOLDFAST: _DCP,
    CheckpointFormat.MEGATRON: _DCP | _SINGLE,
    CheckpointFormat.LIGHTNING: frozenset(CheckpointFormat)
    - {CheckpointFormat.LIGHTNING, CheckpointFormat.ACCELERATE, CheckpointFormat.HOLDFAST},
    CheckpointFormat.ACCELERATE: frozenset(CheckpointFormat)
    - {CheckpointFormat.LIGHTNING, CheckpointFormat.ACCELERATE, CheckpointFormat.HOLDFAST},
    **{
        entry: _SINGLE
        for entry in CheckpointFormat
        if entry.value.startswith(("fsdp", "universal", "hugging", "dcp"))
    },
    **{
        entry: _SINGLE | {CheckpointFormat.HUGGINGFACE}
        for entry in (CheckpointFormat.ZERO1, CheckpointFormat.ZERO2, CheckpointFormat.ZERO3)
    },
}

_NUMBERED = re.compile(r"(\D*)(\d+)\Z")
_MAX_ENTRIES = 100_000
_SHOWN = 4


class CheckpointLocation(msgspec.Struct, frozen=True):
    """Where a checkpoint is and its reader. ``note`` explains how the path was resolved."""

    path: Path
    reader: ModuleType
    format: CheckpointFormat
    note: str = ""


def detect_format(path: Path) -> CheckpointFormat:
    """Return the format of a path. Raises as :func:`locate_checkpoint`."""
    return locate_checkpoint(path).format


def read_checkpoint(
    path: Path, frozen: Sequence[str] = (), order: Sequence[str] = ()
) -> CheckpointContents:
    """Return the contents of the checkpoint at ``path``.

    If its optimizer numbers parameters, ``frozen`` are patterns of names it does not have, and
    ``order`` lists all names in ``model.named_parameters()`` order.

    Raises:
        MissingFile, CheckpointUnreadable: as :func:`locate_checkpoint`, or nothing can be read.
    """
    location = locate_checkpoint(path)
    more = (
        {"hints": MappingHints(tuple(frozen), tuple(order))}
        if location.reader in NUMBERED_READERS
        else {}
    )
    try:
        with gc_paused():
            contents: CheckpointContents = location.reader.read_contents(location.path, **more)
    except OSError as error:
        raise CheckpointUnreadable(location.path, why=os_error_reason(error)) from error
    size_limits.check_contents(contents)
    if order:
        matches = {name: at for at, name in enumerate(order)}
        names = sorted(contents.tensors, key=lambda name: matches.get(name, len(matches)))
        contents = msgspec.structs.replace(
            contents, tensors={name: contents.tensors[name] for name in names}
        )
    return (
        msgspec.structs.replace(contents, notes=(location.note, *contents.notes))
        if location.note
        else contents
    )


def locate_checkpoint(path: Path) -> CheckpointLocation:
    """Return the one checkpoint that a path stands for.

    Raises:
        MissingFile: the path does not exist.
        CheckpointUnreadable: the format is not recognized, or several checkpoints match.
    """
    try:
        if not path.exists():
            raise MissingFile(path, why="no such file or folder")
        location = _match_readers(path)
        if location is None and path.is_dir():
            location = _newest_in_folder(path) or _only_file(path)
    except OSError as error:
        raise CheckpointUnreadable(path, why=os_error_reason(error)) from error
    if location is None:
        raise CheckpointUnreadable(
            path, why="not a recognized checkpoint format", next_step=_next_step(path)
        )
    return location


def _match_readers(path: Path) -> CheckpointLocation | None:
    """Return the match of the readers for this path. Raises CheckpointUnreadable: they differ."""
    matches: dict[CheckpointFormat, CheckpointLocation] = {}
    for reader in READERS:
        form = reader.detect_format(path)
        if form is not None:
            matches.setdefault(form, CheckpointLocation(path, reader, form))
    covered = {entry for match in matches for entry in CONTAINED_FORMATS.get(match, ())}
    exact = [location for match, location in matches.items() if match not in covered]
    if len(exact) > 1:
        names = " and ".join(str(location.format) for location in exact)
        raise CheckpointUnreadable(
            path,
            why=f"it contains two checkpoints: {names}",
            next_step="move one of them to its own folder",
        )
    return exact[0] if exact else None


def _newest_in_folder(folder: Path) -> CheckpointLocation | None:
    """Return the highest-numbered checkpoint in a folder.

    Raises:
        CheckpointUnreadable: there are two series.
    """
    series: dict[str, dict[int, Path]] = {}
    for entry in _entries(folder):
        match = _NUMBERED.match(entry.name)
        if match is not None and not entry.name.startswith(".") and entry.is_dir():
            series.setdefault(match[1], {})[int(match[2])] = entry
    locations: list[CheckpointLocation] = []
    for prefix, numbered in series.items():
        for number in sorted(numbered, reverse=True):
            location = _match_readers(numbered[number])
            if location is not None:
                count = len(numbered)
                note = (
                    f"using {location.path.name}, the newest of {count:,} "
                    f"in {folder.name or folder}"
                    if count > 1
                    else ""
                )
                locations.append(
                    CheckpointLocation(
                        location.path,
                        location.reader,
                        location.format,
                        note or f"found in {prefix}{number}",
                    )
                )
                break
    if len(locations) > 1:
        raise _ambiguous(folder, [location.path for location in locations])
    return locations[0] if locations else None


def _only_file(folder: Path) -> CheckpointLocation | None:
    """Return the only checkpoint file of a folder.

    Raises:
        CheckpointUnreadable: there are several.
    """
    locations = [
        location
        for entry in _entries(folder)
        if entry.is_file() and (location := _match_readers(entry)) is not None
    ]
    if len(locations) > 1:
        raise _ambiguous(folder, [location.path for location in locations])
    return (
        CheckpointLocation(
            locations[0].path,
            locations[0].reader,
            locations[0].format,
            f"found in {locations[0].path.name}",
        )
        if locations
        else None
    )


def _entries(folder: Path) -> Iterator[Path]:
    """Yield folder entries by name, at most _MAX_ENTRIES."""
    try:
        yield from sorted(
            entry for entry, _ in zip(folder.iterdir(), range(_MAX_ENTRIES), strict=False)
        )
    except OSError as error:
        raise CheckpointUnreadable(folder, why=os_error_reason(error)) from error


def _ambiguous(folder: Path, paths: Sequence[Path]) -> CheckpointUnreadable:
    names = ", ".join(path.name for path in paths[:_SHOWN]) + (
        ", ..." if len(paths) > _SHOWN else ""
    )
    why = f"it contains {len(paths):,} checkpoints: {names}"
    return CheckpointUnreadable(folder, why=why, next_step="specify one of them")


def _next_step(path: Path) -> str:
    return (
        "specify the folder of one checkpoint, or a checkpoint file"
        if path.is_dir()
        else "specify a checkpoint file or folder"
    )
