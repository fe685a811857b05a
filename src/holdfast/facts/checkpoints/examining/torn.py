"""What tells that files under one name are of two saves: when each was written, and which steps stand in them.

DCP and DeepSpeed write into the folder file by file. Where a save was cut short over an older one, the new files stand
among the old ones, each of them whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise
from pathlib import Path, PurePath

import msgspec

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Contents, Format
from holdfast.facts.checkpoints.files.torch_files import open_binary
from holdfast.findings import Unknown

#: Files that are written after all others of their save, by format.
_LAST = {Format.DCP: (".metadata",), Format.MEGATRON: (".metadata", "metadata.json"), Format.HOLDFAST: (".metadata",)}


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """When the shards were written last (Unix seconds), cut at the longest pause between two of them.

    ``before`` and ``after`` are the shards on both sides of it, ``pause_s`` long; ``lasted_s`` is the longer of the two
    sides, ``next_size`` the bytes of the shard that came after it. ``index`` is the file that this format writes last,
    ``old_index`` that it is from before the pause.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    began: float
    resumed: float
    pause_s: float
    lasted_s: float
    next_size: int
    index: str = ""
    old_index: bool = False


class Latest(msgspec.Struct, frozen=True, kw_only=True):
    """DeepSpeed's file ``latest`` (or Megatron's) beside the checkpoint, the tag it names, and the other tags there.

    ``whole`` is the newest of those that nothing is missing of; '' where none is, or it was not looked for.
    """

    file: str
    tag: str
    others: tuple[str, ...]
    whole: str = ""


def times(contents: Contents, shards: Collection[str]) -> Times | Unknown:
    """When the files ``shards`` of a checkpoint were written."""
    root = Path(contents.root)
    written = sorted((at, file) for file in shards if (at := _written(root / file)) is not None)
    if len(written) < 2:
        return Unknown("its tensors are in one file")
    pause, cut = max((later[0] - sooner[0], place) for place, (sooner, later) in enumerate(pairwise(written), 1))
    index, at = _index(contents, root)
    return Times(
        before=tuple(file for _, file in written[:cut]), after=tuple(file for _, file in written[cut:]),
        began=written[cut - 1][0], resumed=written[cut][0], pause_s=pause,
        lasted_s=max(written[cut - 1][0] - written[0][0], written[-1][0] - written[cut][0]),
        next_size=contents.files.get(written[cut][1], 0), index=index,
        old_index=at is not None and at < written[cut][0],
    )  # fmt: skip


def _index(contents: Contents, root: Path) -> tuple[str, float | None]:
    """The file that is written last, and when it was."""
    for file in contents.files:
        if PurePath(file).name in _LAST.get(contents.format, ()):
            return file, _written(root / file)
    return "", None


def _written(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:  # it is told among the gaps
        return None


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
            with open_binary(file) as stream:
                said = stream.read(256).decode().strip()
        except (OSError, UnicodeDecodeError, CheckpointUnreadable):
            continue
        tag = f"iter_{int(said):07d}" if said.isdigit() and name != "latest" else said
        if tag == root.name:
            return Latest(file=str(file), tag=tag, others=_beside(root))
    return None


def _beside(root: Path) -> tuple[str, ...]:
    """The folders beside it that are no hidden ones, the newest first."""
    try:
        found = [each for each in root.parent.iterdir() if each.is_dir() and each.name != root.name]
    except OSError:
        return ()
    found.sort(key=lambda each: _written(each) or 0.0, reverse=True)
    return tuple(each.name for each in found if not each.name.startswith("."))
