"""Collects evidence that files under one name belong to two saves: times and steps.

DCP and DeepSpeed write into the folder file by file. If a save over an older one is interrupted,
new files lie among old ones, each of them intact.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise
from pathlib import Path, PurePath

import msgspec

from holdfast.ckpt.contents import CheckpointContents, CheckpointFormat
from holdfast.ckpt.files.torch_files import open_binary
from holdfast.core.errors import CheckpointUnreadable
from holdfast.core.findings import Unknown

#: Files written after all others of their save, by format.
_INDEX_FILES = {
    CheckpointFormat.DCP: (".metadata",),
    CheckpointFormat.MEGATRON: (".metadata", "metadata.json"),
    CheckpointFormat.HOLDFAST: (".metadata",),
}


class WriteTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Modification times of the shard files (Unix seconds), split at the longest pause.

    ``before`` and ``after`` are the files on both sides of the pause of ``pause_s`` seconds;
    ``lasted_s`` is the duration of the longer side, ``next_size`` the size in bytes of the first
    file after the pause. ``index`` is the file this format writes last; ``old_index``: it is older
    than the pause.
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


class LatestPointer(msgspec.Struct, frozen=True, kw_only=True):
    """The file ``latest`` (DeepSpeed, Megatron) next to the checkpoint, its tag, and other tags.

    ``complete_tag`` is the newest other tag that is complete; '' if none is, or it was not
    determined.
    """

    file: str
    tag: str
    others: tuple[str, ...]
    complete_tag: str = ""


def measure_write_times(
    contents: CheckpointContents, shard_files: Collection[str]
) -> WriteTimes | Unknown:
    """Return when the files ``shard_files`` of a checkpoint were written."""
    root = Path(contents.root)
    written = sorted((at, file) for file in shard_files if (at := _mtime(root / file)) is not None)
    if len(written) < 2:
        return Unknown("its tensors are in one file")
    pause, cut = max(
        (later[0] - sooner[0], index_after)
        for index_after, (sooner, later) in enumerate(pairwise(written), 1)
    )
    index, at = _index_file(contents, root)
    return WriteTimes(
        before=tuple(file for _, file in written[:cut]),
        after=tuple(file for _, file in written[cut:]),
        began=written[cut - 1][0],
        resumed=written[cut][0],
        pause_s=pause,
        lasted_s=max(written[cut - 1][0] - written[0][0], written[-1][0] - written[cut][0]),
        next_size=contents.files.get(written[cut][1], 0),
        index=index,
        old_index=at is not None and at < written[cut][0],
    )


def _index_file(contents: CheckpointContents, root: Path) -> tuple[str, float | None]:
    """Return the file that is written last, and its time."""
    for file in contents.files:
        if PurePath(file).name in _INDEX_FILES.get(contents.format, ()):
            return file, _mtime(root / file)
    return "", None


def _mtime(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:  # reported as a missing file
        return None


def optimizer_steps(contents: CheckpointContents) -> Mapping[int, tuple[str, ...]]:
    """Return the parameters of the optimizer state by step."""
    params_by_step: dict[int, list[str]] = {}
    for name, numbers in (contents.optimizer.numbers if contents.optimizer else {}).items():
        if "step" in numbers:
            params_by_step.setdefault(int(numbers["step"]), []).append(name)
    return {step: tuple(names) for step, names in params_by_step.items()}


def read_latest_pointer(root: Path) -> LatestPointer | None:
    """Return the file next to ``root`` that points to it; None if there is none."""
    for name in ("latest", "latest_checkpointed_iteration.txt"):
        file = root.parent / name
        try:
            with open_binary(file) as stream:
                text = stream.read(256).decode().strip()
        except (OSError, UnicodeDecodeError, CheckpointUnreadable):
            continue
        tag = f"iter_{int(text):07d}" if text.isdigit() and name != "latest" else text
        if tag == root.name:
            return LatestPointer(file=str(file), tag=tag, others=_sibling_folders(root))
    return None


def _sibling_folders(root: Path) -> tuple[str, ...]:
    """Return the non-hidden folders next to ``root``, newest first."""
    try:
        folders = [
            folder
            for folder in root.parent.iterdir()
            if folder.is_dir() and folder.name != root.name
        ]
    except OSError:
        return ()
    folders.sort(key=lambda folder: _mtime(folder) or 0.0, reverse=True)
    return tuple(folder.name for folder in folders if not folder.name.startswith("."))
