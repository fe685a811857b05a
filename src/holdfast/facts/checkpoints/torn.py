"""What tells that files under one name are of two saves: when each was written, and which steps stand in them.

DCP and DeepSpeed write into the folder file by file. Where a save was cut short over an older one, the new files stand
among the old ones, each of them whole.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from holdfast.facts.checkpoints.contents import Contents, Format
from holdfast.findings import Unknown

#: Files that are written after all others of their save, by format.
_LAST = {Format.DCP: (".metadata",), Format.MEGATRON: (".metadata", "metadata.json"), Format.HOLDFAST: (".metadata",)}


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """When the files were written last (Unix seconds), cut at the longest pause between two of them.

    ``before`` and ``after`` are the files on both sides of it, ``pause_s`` long; ``lasted_s`` is the longer of the two
    sides. ``index`` is the file that is written last in this format; ``newer`` were written ``newer_s`` after it.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    began: float
    resumed: float
    pause_s: float
    lasted_s: float
    index: str = ""
    newer: tuple[str, ...] = ()
    newer_s: float = 0.0


class Latest(msgspec.Struct, frozen=True, kw_only=True):
    """DeepSpeed's file ``latest`` (or Megatron's) beside the checkpoint, the tag it names, and the other tags there."""

    file: str
    tag: str
    others: tuple[str, ...]


def times(contents: Contents) -> Times | Unknown:
    """When the files of a checkpoint were written."""
    root = Path(contents.root)
    written: list[tuple[float, str]] = []
    for file in contents.files:
        try:
            written.append(((root / file if file else root).stat().st_mtime, file))
        except OSError:  # it is told among the gaps
            continue
    written.sort()
    if len(written) < 2:
        return Unknown("it is one file")
    pauses = [(later[0] - sooner[0], at) for at, (sooner, later) in enumerate(pairwise(written), 1)]
    pause, cut = max(pauses)
    return Times(
        before=tuple(file for _, file in written[:cut]), after=tuple(file for _, file in written[cut:]),
        began=written[cut - 1][0], resumed=written[cut][0], pause_s=pause,
        lasted_s=max(written[cut - 1][0] - written[0][0], written[-1][0] - written[cut][0]),
        **_after_index(contents.format, written),
    )  # fmt: skip


def _after_index(format_: Format, written: Sequence[tuple[float, str]]) -> Mapping[str, Any]:
    indexes = [(at, file) for at, file in written if os.path.basename(file) in _LAST.get(format_, ())]  # noqa: PTH119
    if not indexes:
        return {}
    at, index = indexes[-1]
    newer = tuple(file for time, file in written if time > at and not file.endswith((".json", ".state")))
    return {"index": index, "newer": newer, "newer_s": written[-1][0] - at if newer else 0.0}


def steps(contents: Contents) -> Mapping[int, tuple[str, ...]]:
    """The steps of the optimizer's state, and the parameters that have each."""
    found: dict[int, list[str]] = {}
    for name, numbers in (contents.optimizer.numbers if contents.optimizer else {}).items():
        if "step" in numbers:
            found.setdefault(int(numbers["step"]), []).append(name)
    return {step: tuple(names) for step, names in found.items()}


def latest(root: Path) -> Latest | None:
    """The file that names a checkpoint beside ``root``, where there is one that names this one."""
    for name in ("latest", "latest_checkpointed_iteration.txt"):
        file = root.parent / name
        try:
            with file.open("rb") as stream:
                said = stream.read(256).decode().strip()
        except (OSError, UnicodeDecodeError):
            continue
        tag = f"iter_{int(said):07d}" if said.isdigit() and name != "latest" else said
        if tag == root.name:
            return Latest(file=str(file), tag=tag, others=_beside(root))
    return None


def _beside(root: Path) -> tuple[str, ...]:
    try:
        found = [each for each in root.parent.iterdir() if each.is_dir() and each.name != root.name]
    except OSError:
        return ()
    found.sort(key=lambda each: each.stat().st_mtime, reverse=True)
    return tuple(each.name for each in found if not each.name.startswith("."))
