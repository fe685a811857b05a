"""Compares what every rank's file repeats: step counters, schedulers, options of the optimizer.

Files of equal times can still be of two saves. Each rank writes these values into its own file, so
two files of one kind that disagree are of different saves. DCP stores each value once; there the
parameters' steps are compared, which are spread over the files. Random states differ on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import msgspec

from holdfast.ckpt.contents import CheckpointContents, Tensor, TensorShard
from holdfast.ckpt.files import torch_files
from holdfast.ckpt.files.torch_pickle import OpaqueObject, TensorRef
from holdfast.ckpt.formats.distributed import dtensor
from holdfast.ckpt.formats.distributed import index as dcp_index
from holdfast.ckpt.formats.distributed.blobs import EmbeddedValues
from holdfast.ckpt.formats.distributed.index import IndexEntry
from holdfast.ckpt.state_dicts.values import TorchSource
from holdfast.ckpt.verify.shard_names import files_by_kind
from holdfast.core.errors import CheckpointUnreadable

#: Keys whose values are the same on all ranks at one step, and change from step to step.
_WORDS = frozenset(
    """
    step global_step global_steps iteration global_samples micro_steps last_epoch _step_count
    last_batch_iteration _last_lr epoch cur_iter
    """.split()
)
_MAX_DEPTH = 12
#: Values of DCP read per file and kind; parameters that agree by chance are fewer.
_MAX_VALUES, _MIN_VALUES = 16, 3
#: Values by path, then file.
_Values = dict[str, dict[str, list[str]]]


class CounterDifference(msgspec.Struct, frozen=True):
    """A value that differs between the files of one kind: each value with its files.

    ``certain``: it is not a parameter's step, which can differ (experts skip steps), or each file
    has several parameters at one step.
    """

    path: str
    files: Mapping[str, tuple[str, ...]]
    certain: bool = True


def compare_counters(
    contents: CheckpointContents,
) -> tuple[tuple[CounterDifference, ...], frozenset[str]]:
    """Return the values that differ, and the files of which a value was compared."""
    root = Path(contents.root)
    differences: list[CounterDifference] = []
    compared: set[str] = set()
    for values in (*_torch_values(root, contents), *_dcp_values(root, contents)):
        for path, by_file in values.items():
            compared |= by_file.keys() if len(by_file) > 1 else set()
            files: dict[str, list[str]] = {}
            for file, texts in by_file.items():
                files.setdefault(", ".join(sorted(set(texts))), []).append(file)
            if not set.intersection(*map(set, by_file.values())):
                groups = {text: tuple(names) for text, names in files.items()}
                certain = ".state." not in f".{path}" or all(
                    len(texts) >= _MIN_VALUES and len(set(texts)) == 1 for texts in by_file.values()
                )
                differences.append(CounterDifference(path, groups, certain))
    return tuple(differences), frozenset(compared)


def _torch_values(root: Path, contents: CheckpointContents) -> Iterator[_Values]:
    for files in files_by_kind(contents):
        values: _Values = {}
        for file in files:
            for path, text in _read_counters(root, file).items():
                values.setdefault(path, {})[file] = [text]
        yield values


def _dcp_values(root: Path, contents: CheckpointContents) -> Iterator[_Values]:
    """Yield the values of each DCP index among the files."""
    for index in contents.files:
        if PurePath(index).name != dcp_index.FILE:
            continue
        folder = PurePath(index).parent
        try:
            entries = dcp_index.read_index(root / index)
        except CheckpointUnreadable:  # reported elsewhere
            continue
        values: _Values = {}
        for path, file, text in _read_entries(root / folder, entries):
            values.setdefault(path, {}).setdefault(str(folder / file), []).append(text)
        yield values


def _read_entries(folder: Path, entries: Iterable[IndexEntry]) -> Iterator[tuple[str, str, str]]:
    """Yield path without the parameter's name, file, and value."""
    number_read: dict[tuple[str, str], int] = {}
    with EmbeddedValues(folder) as blobs:
        for entry in entries:
            head, _, word = entry.key.rpartition(".")
            if word not in _WORDS or len(entry.chunks) != 1 or not entry.chunks[0].file:
                continue
            path = (
                f"{head.partition('.state.')[0]}.state.*.{word}" if "state." in head else entry.key
            )
            chunk = entry.chunks[0]
            number_read[path, chunk.file] = count = number_read.get((path, chunk.file), 0) + 1
            if count > _MAX_VALUES or max(entry.shape, default=1) > 1:
                continue
            if entry.dtype:
                shard = TensorShard(
                    file=chunk.file,
                    offset=chunk.offset,
                    shape=chunk.shape,
                    start=chunk.start,
                    packed=chunk.length,
                )
                tensor = Tensor(
                    name=entry.key, dtype=entry.dtype, shape=entry.shape, shards=(shard,)
                )
                value = blobs.number(tensor)
            else:
                value = blobs.value(entry.key, chunk.file, chunk.offset, chunk.length)
            if isinstance(value, (int, float)):
                yield path, chunk.file, repr(value)


def _read_counters(root: Path, file: str) -> dict[str, str]:
    """Return the values by path; empty if the file cannot be read, which is reported elsewhere."""
    try:
        read = torch_files.read_torch_file(root / file, dtensor.CLASSES)
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
