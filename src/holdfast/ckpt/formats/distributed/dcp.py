"""Reads torch.distributed.checkpoint folders: FSDP sharded state; base of Megatron and holdfast.

    .metadata            which shard of which tensor is at which bytes of which file (``index``)
    __<rank>_<n>.distcp  concatenated torch.save files, one per shard or value

Saved without collectives, each rank has its own index, ``__<rank>.metadata``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.ckpt.contents import (
    CheckpointContents,
    CheckpointFormat,
    FileProblem,
    OptimizerState,
    Tensor,
    TensorShard,
)
from holdfast.ckpt.files.size_limits import tensor_limit, too_many_tensors
from holdfast.ckpt.formats.distributed import index as dcp_index
from holdfast.ckpt.formats.distributed.blobs import EmbeddedValues
from holdfast.ckpt.formats.distributed.index import IndexChunk, IndexEntry
from holdfast.ckpt.state_dicts import kinds, naming, sections, ties
from holdfast.ckpt.state_dicts.optimizer_params import MappingHints
from holdfast.ckpt.state_dicts.sections import KeyPath as Keys
from holdfast.ckpt.state_dicts.sections import Sections
from holdfast.core.errors import CheckpointUnreadable
from holdfast.core.findings import Unknown
from holdfast.core.text import os_error_reason

_SHARD = re.compile(r"__(\d+)_\d+\.distcp\Z")
_STATE = re.compile(r"rank-(\d+)\.state\Z")
_RANK_INDEX = re.compile(r"__(\d+)\.metadata\Z")
WRITER = "torch.distributed.checkpoint"
#: A value that torchtitan's Trainer saves, and its name.
_TORCHTITAN_VALUE, _TORCHTITAN = "train_state.step", "torchtitan"


def detect_format(path: Path) -> CheckpointFormat | None:
    """Recognize an index, or shard files without one (reported by :func:`read_contents`)."""
    if (path / dcp_index.FILE).is_file() or (
        path.is_dir() and (_rank_indexes(path) or _shard_files(path))
    ):
        return CheckpointFormat.DCP
    return None


def read_contents(path: Path, hints: MappingHints | None = None) -> CheckpointContents:
    """Return the contents; ``hints`` apply to an optimizer that numbers its parameters.

    Raises:
        CheckpointUnreadable: the index is missing or cannot be read.
    """
    folder = DcpFolder(path)
    sections = folder.sections()
    writer = _TORCHTITAN if _TORCHTITAN_VALUE in sections.values else WRITER
    optimizer = folder.optimizer(sections, hints)
    return folder.contents(CheckpointFormat.DCP, sections, optimizer, writer=writer)


class DcpFolder:
    """A folder with an index; also used by formats built on it. Raises CheckpointUnreadable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = _file_sizes(path)
        self.entries = _read_entries(path, sum(self.files.values()))
        self.problems: list[FileProblem] = []
        self.notes: list[str] = []
        self.blobs = EmbeddedValues(path)
        self._find_incomplete_files()

    def sections(self, entries: Iterable[IndexEntry] | None = None) -> Sections:
        """Split the entries into model, optimizer and other values."""
        with self.blobs:
            result = sections.split_sections(
                self.items(self.entries if entries is None else entries), self.blobs.number
            )
        self.problems += self.blobs.problems
        return result

    def items(self, entries: Iterable[IndexEntry]) -> Iterator[tuple[Keys, Any]]:
        """Yield each tensor and value with its path."""
        for entry in entries:
            path = (
                sections.split_key(entry.key)
                if entry.path == (entry.key,) and self._keys_are_joined
                else entry.path
            )
            if entry.dtype:
                yield path, self.tensor(entry)
                continue
            (chunk,) = entry.chunks
            if chunk.file and self._is_complete(chunk):
                yield path, self.blobs.value(entry.key, chunk.file, chunk.offset, chunk.length)

    def tensor(self, entry: IndexEntry) -> Tensor:
        """Return a tensor; shards that are not stored are reported in ``problems``."""
        shards = []
        for chunk in entry.chunks:
            if 0 in chunk.shape:
                continue
            if not chunk.file or chunk.packed:
                what = "is compressed, which is not supported" if chunk.packed else "is not stored"
                why = f"the shard of {entry.key} at {list(chunk.start)} {what}"
                self.problems.append(
                    FileProblem(kind="unreadable", file=chunk.file or dcp_index.FILE, why=why)
                )
                continue
            shards.append(
                TensorShard(
                    file=chunk.file,
                    offset=chunk.offset,
                    shape=chunk.shape,
                    start=chunk.start,
                    packed=chunk.length,
                )
            )
        tensor = Tensor(name=entry.key, dtype=entry.dtype, shape=entry.shape, shards=tuple(shards))
        stored = sum(chunk.numel for chunk in entry.chunks)
        if stored < tensor.numel:
            why = f"the shards of {entry.key} have {stored:,} of its {tensor.numel:,} elements"
            self.problems.append(FileProblem(kind="missing", file=dcp_index.FILE, why=why))
        return tensor

    def optimizer(
        self, sections: Sections, hints: MappingHints | None = None
    ) -> OptimizerState | None:
        """Return the optimizer by name; numbers are mapped, or a note explains why not."""
        if not sections.numbered:
            return sections.optimizer()
        tied = ties.find_ties(self.path, sections.model, None)
        single = {name: tensor for name, tensor in sections.model.items() if name not in tied}
        optimizer, notes = naming.optimizer_by_name(sections, single, hints)
        self.notes += notes
        return optimizer

    def contents(
        self,
        kind: CheckpointFormat,
        sections: Sections,
        optimizer: OptimizerState | None,
        **more: Any,
    ) -> CheckpointContents:
        """Return the contents; ``more`` overrides computed fields."""
        tied = ties.find_ties(self.path, sections.model, optimizer)
        tensors = {name: tensor for name, tensor in sections.model.items() if name not in tied}
        frozen, buffers = kinds.classify_parameters(tensors, optimizer)
        about: dict[str, Any] = {
            "step": sections.step(),
            "world_size": self.world_size,
            "writer": WRITER,
            "values": sections.values,
            **more,
        }
        return CheckpointContents(
            format=kind,
            root=str(self.path),
            tensors=tensors,
            ties=tied,
            frozen=frozen,
            buffers=buffers,
            optimizer=optimizer,
            files=self.files,
            notes=tuple(self.notes),
            problems=tuple(self.problems),
            **about,
        )

    @property
    def world_size(self) -> int | Unknown:
        """Return the highest rank in file names plus one."""
        ranks = [
            int(match[1])
            for file in {*self.files, *self._required_sizes}
            if (match := _SHARD.search(file))
        ]
        return max(ranks) + 1 if ranks else Unknown("no file name contains a rank")

    def _find_incomplete_files(self) -> None:
        """Add the indexed files that are missing or truncated to the problems."""
        self._required_sizes: dict[str, int] = {}
        for entry in self.entries:
            for chunk in entry.chunks:
                if chunk.file:
                    self._required_sizes[chunk.file] = max(
                        self._required_sizes.get(chunk.file, 0), chunk.offset + chunk.length
                    )
        self._keys_are_joined = all(
            entry.path == (entry.key,) for entry in self.entries
        ) and _has_section_words(self.entries)
        for file, needed in sorted(self._required_sizes.items()):
            actual = self.files.get(file)
            if actual is None:
                self.problems.append(
                    FileProblem(
                        kind="missing",
                        file=file,
                        why="listed in the index",
                        rank=rank_in_name(file),
                    )
                )
            elif actual < needed:
                why = f"it has {actual:,} bytes, but the index refers to bytes up to {needed:,}"
                self.problems.append(
                    FileProblem(kind="truncated", file=file, why=why, rank=rank_in_name(file))
                )

    def _is_complete(self, chunk: IndexChunk) -> bool:
        actual = self.files.get(chunk.file)
        return actual is not None and chunk.offset + chunk.length <= actual


def rank_in_name(file: str) -> int | None:
    """Return the rank in the name of a shard file."""
    match = _SHARD.search(file) or _STATE.search(file)
    return int(match[1]) if match else None


def _has_section_words(entries: Iterable[IndexEntry]) -> bool:
    """Return whether every tensor key starts with a model or optimizer word.

    Then the index does not store the paths.
    """
    return all(len(sections.split_key(entry.key)) > 1 for entry in entries if entry.dtype)


def _read_entries(path: Path, size: int) -> tuple[IndexEntry, ...]:
    entries = _merged_entries(path, size)
    if len(entries) > tensor_limit(size):
        raise CheckpointUnreadable(path, why=too_many_tensors(len(entries), size))
    return entries


def _merged_entries(path: Path, size: int) -> tuple[IndexEntry, ...]:
    if (path / dcp_index.FILE).is_file():
        return dcp_index.read_index(path / dcp_index.FILE, size)
    own = _rank_indexes(path)
    if not own:
        count = len(_shard_files(path))
        why = (
            f"{count} shard files but no .metadata, which is written last: the save did not finish"
        )
        raise CheckpointUnreadable(path, why=why)
    return dcp_index.merge_indexes(dcp_index.read_index(index, size) for index in own)


def _rank_indexes(path: Path) -> list[Path]:
    return sorted(
        (entry for entry in path.iterdir() if _RANK_INDEX.match(entry.name)),
        key=lambda item: item.name,
    )


def _shard_files(path: Path) -> list[Path]:
    return [entry for entry in path.iterdir() if _SHARD.match(entry.name)]


def _file_sizes(path: Path) -> Mapping[str, int]:
    """Bytes of each file in the folder. Raises CheckpointUnreadable."""
    try:
        return {
            entry.name: entry.stat().st_size for entry in sorted(path.iterdir()) if entry.is_file()
        }
    except OSError as error:
        raise CheckpointUnreadable(path, why=os_error_reason(error)) from error
