"""Checkpoints that every rank wrote for itself with torch.save, of tensors that are spread over the ranks.

FSDP1's sharded and local state has ``ShardedTensor``, which says where each shard begins; FSDP2's has ``DTensor``,
which says how the tensor is divided over the mesh of ranks, and the name of the file whose share it is. torch itself
loads such files only in a job of as many ranks, with ``weights_only=False``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Contents, Format, Gap, Optimizer, Tensor
from holdfast.facts.checkpoints.distributed import spread
from holdfast.facts.checkpoints.distributed.blobs import Blobs, as_plain, is_bounded
from holdfast.facts.checkpoints.files import torch_files
from holdfast.facts.checkpoints.files.gaps import gap_of
from holdfast.facts.checkpoints.files.torch_files import TorchFile
from holdfast.facts.checkpoints.files.torch_pickle import Opaque, TensorAt
from holdfast.facts.checkpoints.state_dicts import kinds, naming, sections, ties
from holdfast.facts.checkpoints.state_dicts.dealing import Hints
from holdfast.facts.checkpoints.state_dicts.sections import Sections
from holdfast.findings import Unknown

_ENDINGS = (".pt", ".pth", ".bin", ".ckpt", ".tar")
_MOST_FILES = 100_000
_MARKS = {
    b"torch.distributed._shard.sharded_tensor": Format.FSDP1_SHARDED,
    b"torch.distributed.tensor": Format.FSDP2_SHARDED, b"torch.distributed._tensor": Format.FSDP2_SHARDED,
}  # fmt: skip
_FLAT = "_flat_param"
_MOST_LOOKED = 64 << 20
_NAMELESS = (
    "its parameters are FSDP1's flat ones (local state): the names and shapes of what is in them stand in no file; "
    "load it into the job that saved it, and save that as sharded or full state"
)


def recognises(path: Path) -> Format | None:
    """Files of torch.save with spread tensors in them, or one of them."""
    if path.is_file():
        return _form(path)
    first = next(iter(_candidates(path)), None) if path.is_dir() else None
    return _form(first) if first is not None else None


def read(path: Path, hints: Hints | None = None) -> Contents:
    """What the ranks' files hold together; ``path`` is their folder, or one of them.

    Raises:
        CheckpointUnreadable: none of them can be read.
    """
    whole = _Whole(path if path.is_dir() else path.parent)
    files = [each for each in _candidates(path) if _form(each)] if path.is_dir() else [path]
    ranks = _ranks([each.name for each in files])
    for file in sorted(files, key=lambda each: ranks[each.name]):
        whole.add(file, ranks[file.name])
    if not whole.tensors and whole.gaps:
        raise CheckpointUnreadable(path, why=whole.gaps[0].why)
    return whole.contents({each.name: each.stat().st_size for each in files}, set(ranks.values()), hints)


class _Whole:
    """What the files that were read so far hold together."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tensors: dict[sections.Path, Tensor] = {}
        self.values: dict[sections.Path, Any] = {}
        self.gaps: list[Gap] = []
        self.world = 0

    def add(self, path: Path, rank: int) -> None:
        """Take one rank's file in."""
        try:
            file = torch_files.read(path, spread.CLASSES)
        except CheckpointUnreadable as error:
            self.gaps.append(gap_of(error, path.name, rank=rank))
            return
        if not is_bounded(file.value):
            self.gaps.append(Gap(kind="unreadable", file=path.name, why="it has more parts than can be", rank=rank))
            return
        for keys, value in _leaves(file.value):
            try:
                self._put(keys, value, file, rank)
            except (CheckpointUnreadable, ValueError) as error:
                why = error.why if isinstance(error, CheckpointUnreadable) else str(error)
                what = ".".join(map(str, keys))
                self.gaps.append(Gap(kind="unreadable", file=path.name, why=f"{what}: {why}", rank=rank))

    def _put(self, keys: sections.Path, value: Any, file: TorchFile, rank: int) -> None:
        name, place = ".".join(map(str, keys)), file.path.name
        if isinstance(value, TensorAt):
            if keys not in self.tensors:
                self.tensors[keys] = file.tensor(name, value, place)
            return
        share = spread.share_of(value, rank) if isinstance(value, Opaque) else None
        if share is None:
            self.values.setdefault(keys, as_plain(value))
            return
        self.world = max(self.world, share.ranks)
        pieces = [
            msgspec.structs.replace(piece, start=start)
            for start, tensor in share.parts
            for piece in file.pieces(tensor, place)
        ]
        known = self.tensors.get(keys)
        if known is not None and (known.shape, known.dtype) != (share.shape, share.dtype):
            raise ValueError("it has another shape or dtype than in the files of other ranks")
        pieces = [*(known.pieces if known is not None else ()), *pieces]
        self.tensors[keys] = Tensor(name=name, dtype=share.dtype, shape=share.shape, pieces=tuple(pieces))

    def contents(self, files: Mapping[str, int], ranks: set[int], hints: Hints | None) -> Contents:
        """All of it."""
        self.gaps += [
            Gap(kind="missing", file="", why=f"no file is that of rank {rank}, of {self.world}", rank=rank)
            for rank in range(self.world)
            if rank not in ranks
        ]
        blobs = Blobs(self.root)
        with blobs:
            parts = sections.sorted_out((*self.tensors.items(), *self.values.items()), blobs.number)
        local = any(name.rpartition(".")[2] == _FLAT for name in parts.model)
        if local:
            self.gaps.append(Gap(kind="nameless", file=next(iter(files)), why=_NAMELESS))
        optimizer: Optimizer | None = None
        notes: tuple[str, ...] = ()
        if not local:
            optimizer, notes = self._optimizer(parts, hints)
        tied = {} if local else ties.found(self.root, parts.model, optimizer)
        tensors = {name: tensor for name, tensor in parts.model.items() if name not in tied}
        known = kinds.found(tensors, optimizer)
        return Contents(
            format=Format.FSDP1_LOCAL if local else self._format(files), root=str(self.root), tensors=tensors,
            ties=tied,
            frozen=known[0], buffers=known[1], optimizer=optimizer, step=parts.step(),
            world_size=self.world or Unknown("no tensor says so"), writer="torch.save of each rank",
            values=parts.values, files=files, notes=notes, gaps=(*self.gaps, *blobs.gaps),
        )  # fmt: skip

    def _format(self, files: Mapping[str, int]) -> Format:
        return _form(self.root / next(iter(files))) or Format.FSDP1_SHARDED

    def _optimizer(self, parts: Sections, hints: Hints | None) -> tuple[Optimizer | None, tuple[str, ...]]:
        if not parts.numbered:
            return parts.optimizer(), ()
        tied = ties.found(self.root, parts.model, None)
        single = {name: tensor for name, tensor in parts.model.items() if name not in tied}
        return naming.named(parts, single, hints)


def _leaves(value: Any, keys: sections.Path = (), depth: int = 12) -> Iterator[tuple[sections.Path, Any]]:
    """Each tensor and value of a nested state_dict by its path; a list of plain values is one."""
    if isinstance(value, Mapping) and value and depth:
        for key, each in value.items():
            yield from _leaves(each, (*keys, key if isinstance(key, int) else str(key)), depth - 1)
    elif isinstance(value, list) and depth and any(isinstance(each, (Mapping, TensorAt)) for each in value):
        for at, each in enumerate(value):
            yield from _leaves(each, (*keys, at), depth - 1)
    elif keys:
        yield keys, value


def _candidates(path: Path) -> list[Path]:
    found = []
    for number, each in enumerate(path.iterdir()):
        if number > _MOST_FILES:
            return []
        if each.name.endswith(_ENDINGS) and re.search(r"\d", each.name) and each.is_file():
            found.append(each)
    return sorted(found)


def _form(path: Path) -> Format | None:
    """By the names of classes in the file's description."""
    if not torch_files.is_zip(path):
        return None
    try:
        described = torch_files.records(path).get("data.pkl")
        if described is None:
            return None
        with path.open("rb") as stream:
            stream.seek(described.offset)
            data = stream.read(min(described.size, _MOST_LOOKED))
    except (CheckpointUnreadable, OSError):
        return None
    return next((form for mark, form in _MARKS.items() if mark in data), None)


def _ranks(names: Sequence[str]) -> dict[str, int]:
    """The rank of each file: the number in its name that differs from file to file; their order where none does."""
    numbers = [[int(each) for each in re.findall(r"\d+", name)] for name in names]
    columns = list(zip(*numbers, strict=False)) if len({len(each) for each in numbers}) == 1 else []
    column = next((each for each in reversed(columns) if len(set(each)) == len(names) and max(each) < 1 << 20), None)
    return dict(zip(names, column or range(len(names)), strict=True))
