"""Reads checkpoints that every rank wrote separately with torch.save.

FSDP1's sharded and local state contains ``ShardedTensor``, which records where each shard starts;
FSDP2's contains ``DTensor``, which records how the tensor is divided over the device mesh, so that
the file name tells the shard. torch itself loads such files only in a job of the same world size,
with ``weights_only=False``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.ckpt.contents import (
    CheckpointContents,
    CheckpointFormat,
    FileProblem,
    OptimizerState,
    Tensor,
)
from holdfast.ckpt.files import torch_files
from holdfast.ckpt.files.torch_files import TorchFile
from holdfast.ckpt.files.torch_pickle import OpaqueObject, TensorRef
from holdfast.ckpt.files.unreadable_files import problem_of
from holdfast.ckpt.formats.distributed import dtensor
from holdfast.ckpt.formats.distributed.blobs import EmbeddedValues, as_plain, is_bounded
from holdfast.ckpt.state_dicts import kinds, naming, ties
from holdfast.ckpt.state_dicts import sections as state_sections
from holdfast.ckpt.state_dicts.optimizer_params import MappingHints
from holdfast.ckpt.state_dicts.sections import Sections
from holdfast.core.errors import CheckpointUnreadable
from holdfast.core.findings import Unknown

_ENDINGS = (".pt", ".pth", ".bin", ".ckpt", ".tar")
_MAX_FILES = 100_000
_MARKS = {
    b"torch.distributed._shard.sharded_tensor": CheckpointFormat.FSDP1_SHARDED,
    b"torch.distributed.tensor": CheckpointFormat.FSDP2_SHARDED,
    b"torch.distributed._tensor": CheckpointFormat.FSDP2_SHARDED,
}
_FLAT = "_flat_param"
_MAX_SCANNED_BYTES = 64 << 20
_NAMELESS = (
    "it has FSDP1 flat parameters (local state), whose names and shapes are not stored; load it "
    "into the job that saved it and save sharded or full state instead"
)


def detect_format(path: Path) -> CheckpointFormat | None:
    """Recognize torch.save files that contain sharded tensors, or one of them."""
    if path.is_file():
        return _detect_by_names(path)
    first = next(iter(_candidates(path)), None) if path.is_dir() else None
    return _detect_by_names(first) if first is not None else None


def read_contents(path: Path, hints: MappingHints | None = None) -> CheckpointContents:
    """Return the merged contents; ``path`` is the folder, or one of the files.

    Raises:
        CheckpointUnreadable: no file can be read.
    """
    rank_files = _RankFileSet(path if path.is_dir() else path.parent)
    files = (
        [file for file in _candidates(path) if _detect_by_names(file)] if path.is_dir() else [path]
    )
    ranks = _ranks_by_name([file.name for file in files])
    for file in sorted(files, key=lambda file: ranks[file.name]):
        rank_files.add(file, ranks[file.name])
    if not rank_files.tensors and rank_files.problems:
        raise CheckpointUnreadable(path, why=rank_files.problems[0].why)
    return rank_files.contents(
        {file.name: file.stat().st_size for file in files}, set(ranks.values()), hints
    )


class _RankFileSet:
    """The merged contents of the files read so far."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tensors: dict[state_sections.KeyPath, Tensor] = {}
        self.values: dict[state_sections.KeyPath, Any] = {}
        self.problems: list[FileProblem] = []
        self.world_size = 0

    def add(self, path: Path, rank: int) -> None:
        """Add one rank's file."""
        try:
            file = torch_files.read_torch_file(path, dtensor.CLASSES)
        except CheckpointUnreadable as error:
            self.problems.append(problem_of(error, path.name, rank=rank))
            return
        if not is_bounded(file.value):
            self.problems.append(
                FileProblem(
                    kind="unreadable",
                    file=path.name,
                    why="it is too large when expanded",
                    rank=rank,
                )
            )
            return
        for keys, value in _leaves(file.value):
            try:
                self._put(keys, value, file, rank)
            except (CheckpointUnreadable, ValueError) as error:
                why = error.why if isinstance(error, CheckpointUnreadable) else str(error)
                what = ".".join(map(str, keys))
                self.problems.append(
                    FileProblem(kind="unreadable", file=path.name, why=f"{what}: {why}", rank=rank)
                )

    def _put(self, keys: state_sections.KeyPath, value: Any, file: TorchFile, rank: int) -> None:
        name, file_name = ".".join(map(str, keys)), file.path.name
        if isinstance(value, TensorRef):
            if keys not in self.tensors:
                self.tensors[keys] = file.tensor(name, value, file_name)
            return
        share = dtensor.local_shards_of(value, rank) if isinstance(value, OpaqueObject) else None
        if share is None:
            self.values.setdefault(keys, as_plain(value))
            return
        self.world_size = max(self.world_size, share.ranks)
        shards = [
            msgspec.structs.replace(shard, start=start)
            for start, tensor in share.parts
            for shard in file.shards(tensor, file_name)
        ]
        existing = self.tensors.get(keys)
        if existing is not None and (existing.shape, existing.dtype) != (share.shape, share.dtype):
            raise ValueError("its shape or dtype differs between ranks")
        shards = [*(existing.shards if existing is not None else ()), *shards]
        self.tensors[keys] = Tensor(
            name=name, dtype=share.dtype, shape=share.shape, shards=tuple(shards)
        )

    def contents(
        self, files: Mapping[str, int], ranks: set[int], hints: MappingHints | None
    ) -> CheckpointContents:
        """Return the merged contents."""
        self.problems += [
            FileProblem(
                kind="missing",
                file="",
                why=f"no file for rank {rank} of {self.world_size}",
                rank=rank,
            )
            for rank in range(self.world_size)
            if rank not in ranks
        ]
        blobs = EmbeddedValues(self.root)
        with blobs:
            sections = state_sections.split_sections(
                (*self.tensors.items(), *self.values.items()), blobs.number
            )
        local = any(name.rpartition(".")[2] == _FLAT for name in sections.model)
        if local:
            self.problems.append(
                FileProblem(kind="nameless", file=next(iter(files)), why=_NAMELESS)
            )
        optimizer: OptimizerState | None = None
        notes: tuple[str, ...] = ()
        if not local:
            optimizer, notes = self._optimizer(sections, hints)
        tied = {} if local else ties.find_ties(self.root, sections.model, optimizer)
        tensors = {name: tensor for name, tensor in sections.model.items() if name not in tied}
        classified = kinds.classify_parameters(tensors, optimizer)
        return CheckpointContents(
            format=CheckpointFormat.FSDP1_LOCAL if local else self._format(files),
            root=str(self.root),
            tensors=tensors,
            ties=tied,
            frozen=classified[0],
            buffers=classified[1],
            optimizer=optimizer,
            step=sections.step(),
            world_size=self.world_size or Unknown("no tensor records it"),
            writer="torch.save of each rank",
            values=sections.values,
            files=files,
            notes=notes,
            problems=(*self.problems, *blobs.problems),
        )

    def _format(self, files: Mapping[str, int]) -> CheckpointFormat:
        return _detect_by_names(self.root / next(iter(files))) or CheckpointFormat.FSDP1_SHARDED

    def _optimizer(
        self, sections: Sections, hints: MappingHints | None
    ) -> tuple[OptimizerState | None, tuple[str, ...]]:
        if not sections.numbered:
            return sections.optimizer(), ()
        tied = ties.find_ties(self.root, sections.model, None)
        single = {name: tensor for name, tensor in sections.model.items() if name not in tied}
        return naming.optimizer_by_name(sections, single, hints)


def _leaves(
    value: Any, keys: state_sections.KeyPath = (), depth: int = 12
) -> Iterator[tuple[state_sections.KeyPath, Any]]:
    """Yield each tensor and value of a nested state_dict by path; plain lists stay whole."""
    if isinstance(value, Mapping) and value and depth:
        for key, entry in value.items():
            yield from _leaves(entry, (*keys, key if isinstance(key, int) else str(key)), depth - 1)
    elif (
        isinstance(value, list)
        and depth
        and any(isinstance(item, (Mapping, TensorRef)) for item in value)
    ):
        for at, entry in enumerate(value):
            yield from _leaves(entry, (*keys, at), depth - 1)
    elif keys:
        yield keys, value


def _candidates(path: Path) -> list[Path]:
    candidates = []
    for number, entry in enumerate(path.iterdir()):
        if number > _MAX_FILES:
            return []
        if entry.name.endswith(_ENDINGS) and re.search(r"\d", entry.name) and entry.is_file():
            candidates.append(entry)
    return sorted(candidates)


def _detect_by_names(path: Path) -> CheckpointFormat | None:
    """Detect the format from class names in the pickle."""
    if not torch_files.is_zip(path):
        return None
    try:
        described = torch_files.read_records(path).get("data.pkl")
        if described is None:
            return None
        with path.open("rb") as stream:
            stream.seek(described.offset)
            data = stream.read(min(described.size, _MAX_SCANNED_BYTES))
    except (CheckpointUnreadable, OSError):
        return None
    return next((form for mark, form in _MARKS.items() if mark in data), None)


def _ranks_by_name(names: Sequence[str]) -> dict[str, int]:
    """Return the rank of each file: the number in its name that varies, else its order."""
    numbers = [[int(entry) for entry in re.findall(r"\d+", name)] for name in names]
    columns = (
        list(zip(*numbers, strict=False)) if len({len(entry) for entry in numbers}) == 1 else []
    )
    column = next(
        (
            entry
            for entry in reversed(columns)
            if len(set(entry)) == len(names) and max(entry) < 1 << 20
        ),
        None,
    )
    return dict(zip(names, column or range(len(names)), strict=True))
