"""Reads under which name each rank's file was written: two swapped files are intact and complete.

``torch.save`` stores the file's name in the archive. Where the name alone says which part of each
tensor a file holds (ZeRO-3, FSDP2's files of ranks), nothing else can show that two were swapped.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePath

from holdfast.ckpt.contents import CheckpointContents, CheckpointFormat
from holdfast.ckpt.files import torch_files

_SUFFIXES = (".pt", ".pth", ".bin", ".pkl")
_NUMBER = re.compile(r"\d+")
#: Formats in which only the name of a file says which rank's part it holds.
_BY_NAME = frozenset({CheckpointFormat.ZERO3, CheckpointFormat.FSDP2_SHARDED})
_MAX_FILES = 4096


def files_by_kind(contents: CheckpointContents) -> Iterator[list[str]]:
    """Yield the torch files whose names differ only in numbers, several each."""
    kinds: dict[str, list[str]] = {}
    for file in contents.files:
        if file.endswith(_SUFFIXES):
            path = PurePath(file)
            kinds.setdefault(str(path.with_name(_NUMBER.sub("#", path.name))), []).append(file)
    yield from (files[:_MAX_FILES] for files in kinds.values() if len(files) > 1)


def find_misplaced(contents: CheckpointContents) -> Mapping[str, str]:
    """Return the files that were written under the name of another file of their kind."""
    found: dict[str, str] = {}
    for files in files_by_kind(contents):
        stems = {PurePath(file).stem for file in files}
        for file in files:
            name = _written_name(contents, file, stems)
            if name and name != PurePath(file).stem:
                found[file] = name
    return found


def find_unnamed(contents: CheckpointContents) -> tuple[str, ...]:
    """Return the files that could be swapped unnoticed: they do not record their name."""
    if contents.format not in _BY_NAME:
        return ()
    return tuple(
        file
        for files in files_by_kind(contents)
        for file in files
        if not _written_name(contents, file, {PurePath(file).stem for file in files})
    )


def _written_name(contents: CheckpointContents, file: str, stems: Collection[str]) -> str:
    """Return which of these names the archive has, '' if none; temporary suffixes are ignored."""
    name = torch_files.archive_name(Path(contents.root) / file)
    while name and name not in stems:
        name = name.rpartition(".")[0]
    return name
