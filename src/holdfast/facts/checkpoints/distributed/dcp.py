"""Checkpoints of torch.distributed.checkpoint: FSDP2's and FSDP1's sharded state, Megatron's and our own stand on it.

    .metadata          which piece of which tensor stands at which bytes of which file (``dcp_index``)
    __<rank>_<n>.distcp  each piece a whole file of torch.save, one after the other; values that are no tensor likewise

Saved without collectives, each rank has an index of its own, ``__<rank>.metadata``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Contents, Format, Gap, Optimizer, Piece, Tensor
from holdfast.facts.checkpoints.distributed import index as dcp_index
from holdfast.facts.checkpoints.distributed.blobs import Blobs
from holdfast.facts.checkpoints.distributed.index import Chunk, Entry
from holdfast.facts.checkpoints.state_dicts import kinds, naming, sections, ties
from holdfast.facts.checkpoints.state_dicts.dealing import Hints
from holdfast.facts.checkpoints.state_dicts.sections import Path as Keys
from holdfast.facts.checkpoints.state_dicts.sections import Sections
from holdfast.findings import Unknown

_SHARD = re.compile(r"__(\d+)_\d+\.distcp\Z")
_STATE = re.compile(r"rank-(\d+)\.state\Z")
_OWN_INDEX = re.compile(r"__(\d+)\.metadata\Z")
WRITER = "torch.distributed.checkpoint"


def recognises(path: Path) -> Format | None:
    """An index, or shards without one (which :func:`read` then says)."""
    if (path / dcp_index.FILE).is_file() or (path.is_dir() and (_own_indexes(path) or _shards(path))):
        return Format.DCP
    return None


def read(path: Path, hints: Hints | None = None) -> Contents:
    """What is in the checkpoint. Raises CheckpointUnreadable: its index is missing, or cannot be read.

    ``hints`` are about an optimizer with numbers in the place of names.
    """
    found = Folder(path)
    parts = found.sections()
    return found.contents(Format.DCP, parts, found.optimizer(parts, hints))


class Folder:
    """A folder with an index; readers of formats that stand on it add what they know. Raises CheckpointUnreadable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries = _index(path)
        self.gaps: list[Gap] = []
        self.notes: list[str] = []
        self.files = _sizes(path)
        self.blobs = Blobs(path)
        self._short = self._torn()

    def sections(self, entries: Iterable[Entry] | None = None) -> Sections:
        """What is the model's, the optimizer's, and neither."""
        with self.blobs:
            found = sections.sorted_out(self.items(self.entries if entries is None else entries), self.blobs.number)
        self.gaps += self.blobs.gaps
        return found

    def items(self, entries: Iterable[Entry]) -> Iterator[tuple[Keys, Any]]:
        """Each tensor and each value, by its path."""
        for entry in entries:
            path = sections.split(entry.key) if entry.path == (entry.key,) and self._split else entry.path
            if entry.dtype:
                yield path, self.tensor(entry)
                continue
            (chunk,) = entry.chunks
            if chunk.file and self._is_whole(chunk):
                yield path, self.blobs.value(entry.key, chunk.file, chunk.offset, chunk.length)

    def tensor(self, entry: Entry) -> Tensor:
        """A tensor by its pieces; those that stand nowhere are told in ``gaps``."""
        pieces = []
        for chunk in entry.chunks:
            if 0 in chunk.shape:
                continue
            if not chunk.file or chunk.packed:
                what = "is compressed, which is not read here" if chunk.packed else "stands in no file"
                why = f"the piece of {entry.key} at {list(chunk.start)} {what}"
                self.gaps.append(Gap(kind="unreadable", file=chunk.file or dcp_index.FILE, why=why))
                continue
            pieces.append(
                Piece(file=chunk.file, offset=chunk.offset, shape=chunk.shape, start=chunk.start, packed=chunk.length)
            )
        return Tensor(name=entry.key, dtype=entry.dtype, shape=entry.shape, pieces=tuple(pieces))

    def optimizer(self, parts: Sections, hints: Hints | None = None) -> Optimizer | None:
        """The optimizer by names; where it has numbers they are mapped, or a note says why not."""
        if not parts.numbered:
            return parts.optimizer()
        tied = ties.found(self.path, parts.model, None)
        single = {name: tensor for name, tensor in parts.model.items() if name not in tied}
        found, notes = naming.named(parts, single, hints)
        self.notes += notes
        return found

    def contents(self, kind: Format, parts: Sections, optimizer: Optimizer | None, **more: Any) -> Contents:
        """All of it."""
        tied = ties.found(self.path, parts.model, optimizer)
        tensors = {name: tensor for name, tensor in parts.model.items() if name not in tied}
        frozen, buffers = kinds.found(tensors, optimizer)
        about: dict[str, Any] = {
            "step": parts.step(), "world_size": self.world_size, "writer": WRITER, "values": parts.values, **more,
        }  # fmt: skip
        return Contents(
            format=kind, root=str(self.path), tensors=tensors, ties=tied, frozen=frozen, buffers=buffers,
            optimizer=optimizer, files=self.files, notes=tuple(self.notes), gaps=tuple(self.gaps), **about,
        )  # fmt: skip

    @property
    def world_size(self) -> int | Unknown:
        """By the highest rank that a file is named after."""
        ranks = [int(match[1]) for file in {*self.files, *self._named} if (match := _SHARD.search(file))]
        return max(ranks) + 1 if ranks else Unknown("no file is named after a rank")

    def _torn(self) -> set[str]:
        """Files that the index names and that are not whole; each is a gap."""
        self._named: dict[str, int] = {}
        for entry in self.entries:
            for chunk in entry.chunks:
                if chunk.file:
                    self._named[chunk.file] = max(self._named.get(chunk.file, 0), chunk.offset + chunk.length)
        self._split = all(entry.path == (entry.key,) for entry in self.entries) and _worded(self.entries)
        short = set()
        for file, needed in sorted(self._named.items()):
            there = self.files.get(file)
            if there is None:
                self.gaps.append(Gap(kind="missing", file=file, why="the index names it", rank=rank_of(file)))
            elif there < needed:
                why = f"it has {there:,} bytes, and the index names bytes up to {needed:,}"
                self.gaps.append(Gap(kind="truncated", file=file, why=why, rank=rank_of(file)))
            else:
                continue
            short.add(file)
        return short

    def _is_whole(self, chunk: Chunk) -> bool:
        there = self.files.get(chunk.file)
        return there is not None and chunk.offset + chunk.length <= there


def rank_of(file: str) -> int | None:
    """The rank whose name a shard has."""
    match = _SHARD.search(file) or _STATE.search(file)
    return int(match[1]) if match else None


def _worded(entries: Iterable[Entry]) -> bool:
    """Every tensor's key begins with a word for a model or an optimizer: such an index does not tell the paths."""
    return all(len(sections.split(entry.key)) > 1 for entry in entries if entry.dtype)


def _index(path: Path) -> tuple[Entry, ...]:
    if (path / dcp_index.FILE).is_file():
        return dcp_index.read(path / dcp_index.FILE)
    own = _own_indexes(path)
    if not own:
        count = len(_shards(path))
        why = f"it has {count} shards and no .metadata, which is written last: the save was never finished"
        raise CheckpointUnreadable(path, why=why)
    return dcp_index.merged(dcp_index.read(each) for each in own)


def _own_indexes(path: Path) -> list[Path]:
    return sorted((each for each in path.iterdir() if _OWN_INDEX.match(each.name)), key=lambda each: each.name)


def _shards(path: Path) -> list[Path]:
    return [each for each in path.iterdir() if _SHARD.match(each.name)]


def _sizes(path: Path) -> Mapping[str, int]:
    """Bytes of each file in the folder. Raises CheckpointUnreadable."""
    try:
        return {each.name: each.stat().st_size for each in sorted(path.iterdir()) if each.is_file()}
    except OSError as error:
        raise CheckpointUnreadable(path, why=(error.strerror or str(error)).lower()) from error
