"""Compares what every rank's file repeats: step counters, schedulers, options of the optimizer.

Files of equal times can still be of two saves. Each rank writes these values into its own file, so
two files of one kind that disagree are of different saves. Random states differ on purpose.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import msgspec

from holdfast.ckpt.contents import CheckpointContents
from holdfast.ckpt.files import torch_files
from holdfast.ckpt.files.torch_pickle import OpaqueObject, TensorRef
from holdfast.ckpt.state_dicts.values import TorchSource
from holdfast.core.errors import CheckpointUnreadable

#: Keys whose values are the same on all ranks at one step, and change from step to step.
_WORDS = frozenset(
    """
    step global_step global_steps iteration global_samples micro_steps last_epoch _step_count
    last_batch_iteration _last_lr epoch cur_iter
    """.split()
)
_SUFFIXES = (".pt", ".pth", ".bin", ".pkl")
_NUMBER = re.compile(r"\d+")
_MAX_DEPTH = 12
_MAX_FILES = 4096


class CounterDifference(msgspec.Struct, frozen=True):
    """A value that differs between the files of one kind: each value with its files."""

    path: str
    files: Mapping[str, tuple[str, ...]]

    @property
    def per_parameter(self) -> bool:
        """Return whether it is a parameter's step, which can differ: experts skip steps."""
        return ".state." in f".{self.path}"


def compare_counters(contents: CheckpointContents) -> tuple[tuple[CounterDifference, ...], bool]:
    """Return the values that differ, and whether any value was found in two files or more."""
    root = Path(contents.root)
    kinds: dict[str, list[str]] = {}
    for file in contents.files:
        if file.endswith(_SUFFIXES):
            kinds.setdefault(_NUMBER.sub("#", PurePath(file).name), []).append(file)
    differences: list[CounterDifference] = []
    compared = False
    for files in kinds.values():
        values: dict[str, dict[str, list[str]]] = {}
        for file in files[:_MAX_FILES] if len(files) > 1 else ():
            for path, text in _read_counters(root, file).items():
                values.setdefault(path, {}).setdefault(text, []).append(file)
        for path, by_text in values.items():
            compared = compared or sum(map(len, by_text.values())) > 1
            if len(by_text) > 1:
                groups = {text: tuple(names) for text, names in by_text.items()}
                differences.append(CounterDifference(path, groups))
    return tuple(differences), compared


def _read_counters(root: Path, file: str) -> dict[str, str]:
    """Return the values by path; empty if the file cannot be read, which is reported elsewhere."""
    try:
        read = torch_files.read_torch_file(root / file)
        return dict(_walk(TorchSource(read, file), read.value))
    except CheckpointUnreadable:
        return {}


def _walk(
    source: TorchSource, value: Any, path: str = "", depth: int = 0
) -> Iterator[tuple[str, str]]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, OpaqueObject):
        value = value.__dict__.get("state")
    if isinstance(value, Mapping):
        for key, item in value.items():
            where = f"{path}.{key}" if path else str(key)
            if key in _WORDS and (text := _text_of(source, item)):
                yield where, text
            elif not isinstance(item, TensorRef):
                yield from _walk(source, item, where, depth + 1)
    elif isinstance(value, (list, tuple)) and not all(
        isinstance(item, (int, float)) for item in value
    ):
        for number, item in enumerate(value):
            yield from _walk(source, item, f"{path}.{number}", depth + 1)


def _text_of(source: TorchSource, value: Any) -> str:
    """Return a number, or a list of numbers, as text; '' for anything else."""
    if isinstance(value, TensorRef):
        value = source.number(value)
    is_number = isinstance(value, (int, float))
    if is_number or (
        isinstance(value, list) and value and all(isinstance(n, float) for n in value)
    ):
        return repr(value)
    return ""
