"""Writes a folder that ``dcp.load`` reads into FSDP2, FSDP1 or DDP at any world size.

    model.<name>                       weights and buffers; tied names refer to the same bytes
    optimizer.state.<name>.exp_avg     by name, as in get_optimizer_state_dict
    optimizer.param_groups.0.lr        groups, with parameter names
    step, scheduler.last_epoch, ...    other values by path

The form ``torchtitan`` has the keys of its CheckpointManager (components/checkpointer/dcp.py)::

    <name>                                weights and buffers
    optimizer.state.<name>.exp_avg        states, and options per parameter, in one level
    optimizer.param_groups.<name>.lr
    lr_scheduler.last_epoch, train_state.step, train_state.ntokens_seen

Parameters are sharded along their first dimension as by FSDP2, one file per rank.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from holdfast.ckpt.contents import CheckpointContents, OptimizerState, Tensor
from holdfast.ckpt.convert import pickles
from holdfast.ckpt.convert.archives import Storages
from holdfast.ckpt.convert.files import Archive, TargetFile, TargetFiles, TensorRun
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.writers import dcp_index, state_dicts
from holdfast.ckpt.convert.writers.dcp_index import StoredChunk, WrittenIndexEntry
from holdfast.ckpt.state_dicts.optimizers import SCALAR_STATES
from holdfast.ckpt.state_dicts.values import is_plain

KeyPath = tuple[str | int, ...]
FORMS = ("nested", "torchtitan")


def write(contents: CheckpointContents, options: ConvertOptions) -> TargetFiles:
    """Write the folder in one of FORMS."""
    folder = DcpFolderBuilder(options.ranks)
    if options.form == "torchtitan":
        return _write_torchtitan(folder, contents, options)
    add_model(folder, contents, options)
    if options.optimizer and contents.optimizer is not None:
        add_optimizer(folder, contents, contents.optimizer, section=options.optimizer_key)
    if isinstance(contents.step, int) and "step" not in contents.values:
        folder.value(("step",), contents.step)
    _add_values(folder, contents, state_dicts.nested_values(contents))
    return TargetFiles(folder.files(), tuple(state_dicts.describe_losses(contents, options)))


def _write_torchtitan(
    folder: DcpFolderBuilder, contents: CheckpointContents, options: ConvertOptions
) -> TargetFiles:
    """Write the folder with torchtitan's keys."""
    add_model(folder, contents, options, below=())
    if options.optimizer and contents.optimizer is not None:
        _add_flat_optimizer(folder, contents, contents.optimizer)
    values = state_dicts.nested_values(contents)
    step = contents.step if isinstance(contents.step, int) else 0
    scheduler = state_dicts.scheduler_state(contents) or {"last_epoch": step}
    known = values.get("train_state")
    tokens = known.get("ntokens_seen", 0) if isinstance(known, dict) else 0
    own = {
        "lr_scheduler": {"last_epoch": scheduler["last_epoch"]},
        "train_state": {"step": step, "ntokens_seen": tokens},
    }
    _add_values(folder, contents, {**values, **own})
    losses = [*state_dicts.describe_losses(contents, options)]
    if "dataloader" not in values:
        losses.append(
            "The position in torchtitan's data was not written: load with "
            "--checkpoint.exclude_from_loading dataloader."
        )
    return TargetFiles(folder.files(), tuple(losses))


def _add_values(
    folder: DcpFolderBuilder, contents: CheckpointContents, values: Mapping[str, Any]
) -> None:
    """Add plain values by path, and the tensors that are neither weights nor states."""
    for path, value in flatten(values):
        folder.value(path, value)
    for name, value in contents.values.items():
        if isinstance(value, Tensor):
            folder.tensor(tuple(name.split(".")), value, value.dtype, sharded=False)


def add_model(
    folder: DcpFolderBuilder,
    contents: CheckpointContents,
    options: ConvertOptions,
    below: KeyPath = ("model",),
) -> None:
    """Add weights and buffers below a key."""
    for name, tensor in contents.tensors.items():
        sharded = name not in contents.buffers
        folder.tensor((*below, name), tensor, options.weight_dtype(tensor), sharded=sharded)
    for name, first in contents.ties.items():
        if first in contents.tensors:
            folder.add_alias((*below, name), (*below, first))


def add_optimizer(
    folder: DcpFolderBuilder,
    contents: CheckpointContents,
    optimizer: OptimizerState,
    *,
    groups: bool = True,
    section: str = "optimizer",
) -> None:
    """Add the states by name, and the groups, below the key ``section``."""
    _add_states(folder, contents, optimizer, lambda name, key: (section, "state", name, key))
    for at, group in enumerate(state_dicts.optimizer_groups(contents, optimizer) if groups else ()):
        for key, value in {**group.options, "params": list(group.params)}.items():
            if key != "param_names" and is_plain(value):
                folder.value((section, "param_groups", at, key), value)


def _add_flat_optimizer(
    folder: DcpFolderBuilder, contents: CheckpointContents, optimizer: OptimizerState
) -> None:
    """Add the states, and the options of each parameter, in one level of keys."""
    _add_states(folder, contents, optimizer, lambda name, key: ("optimizer", f"state.{name}.{key}"))
    for group in state_dicts.optimizer_groups(contents, optimizer):
        for key, value in state_dicts.plain_options(group).items():
            for name in group.params:
                folder.value(("optimizer", f"param_groups.{name}.{key}"), value)


def _add_states(
    folder: DcpFolderBuilder,
    contents: CheckpointContents,
    optimizer: OptimizerState,
    path_of: Callable[[str, str], KeyPath],
) -> None:
    """Add the states of each parameter at ``path_of`` its name and the state's."""
    for name in dict.fromkeys((*optimizer.tensors, *optimizer.numbers)):
        param = contents.tensors.get(name)
        for key, tensor in optimizer.tensors.get(name, {}).items():
            sharded = param is not None and tensor.shape == param.shape
            folder.tensor(path_of(name, key), tensor, tensor.dtype, sharded=sharded)
        numbers = dict(optimizer.numbers.get(name, {}))
        if "step" not in numbers and isinstance(contents.step, int):
            numbers["step"] = contents.step
        for key, number in numbers.items():
            if key in SCALAR_STATES:
                folder.number(path_of(name, key), float(number))
            else:
                folder.value(path_of(name, key), number)


def flatten(
    value: Mapping[str, Any], path: KeyPath = ()
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield each value by path, as torch flattens: lists stay whole unless they contain dicts."""
    for key, item in value.items():
        yield from _flatten_value(item, (*path, key))


def _flatten_value(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if isinstance(value, Mapping) and value:
        yield from flatten(value, path)
    elif isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        for at, item in enumerate(value):
            yield from _flatten_value(item, (*path, at))
    else:
        yield path, value


class DcpFolderBuilder:
    """Collects the files of ``ranks`` ranks, and their index."""

    def __init__(self, ranks: int, below: str = "") -> None:
        self._below = below
        self._parts: list[list[Archive]] = [[] for _ in range(ranks)]
        self._sizes = [0] * ranks
        self._entries: dict[KeyPath, WrittenIndexEntry] = {}

    def tensor(self, path: KeyPath, tensor: Tensor, dtype: str, *, sharded: bool) -> None:
        """Add a tensor: a shard per rank, or complete in the smallest rank file."""
        ranks = len(self._parts)
        if not (sharded and tensor.shape and tensor.numel and ranks > 1):
            shards = [self._shard(self._smallest_rank(), tensor, dtype, 0, tensor.shape)]
        else:
            rows = -(-tensor.shape[0] // ranks)  # as in torch.chunk
            shards = [
                self._shard(
                    rank, tensor, dtype, at, (min(rows, tensor.shape[0] - at), *tensor.shape[1:])
                )
                for rank, at in enumerate(range(0, tensor.shape[0], rows))
            ]
        self._entries[path] = WrittenIndexEntry(path, dtype, tensor.shape, tuple(shards))

    def add_alias(self, path: KeyPath, other: KeyPath) -> None:
        """Add an alias of a tensor."""
        known = self._entries[other]
        self._entries[path] = WrittenIndexEntry(path, known.dtype, known.shape, known.shards)

    def number(self, path: KeyPath, value: float) -> None:
        """Add a number as a scalar tensor."""
        storages = Storages()
        archive = storages.file(storages.numbers(struct.pack("<f", value), "float32", ()))
        self._entries[path] = WrittenIndexEntry(
            path, "float32", (), (self._append(self._smallest_rank(), archive, (), ()),)
        )

    def value(self, path: KeyPath, value: Any) -> None:
        """Add a value that is not a tensor."""
        self._entries[path] = WrittenIndexEntry(
            path, "", (), (self._append(self._smallest_rank(), Storages().file(value), None, ()),)
        )

    def files(self) -> tuple[TargetFile, ...]:
        """Return all files, the index last."""
        rank_files = [
            TargetFile(f"{self._below}{_shard_name(rank)}", tuple(parts))
            for rank, parts in enumerate(self._parts)
        ]
        return (
            *rank_files,
            TargetFile(
                f"{self._below}{dcp_index.FILE}", (dcp_index.build_index(self._entries.values()),)
            ),
        )

    def _shard(
        self, rank: int, tensor: Tensor, dtype: str, row: int, shape: tuple[int, ...]
    ) -> StoredChunk:
        storages = Storages()
        first = row * math.prod(tensor.shape[1:])
        storage = storages.storage(
            (TensorRun(tensor, first, first + math.prod(shape), dtype),), dtype
        )
        start = (row, *(0 for _ in shape[1:])) if shape else ()
        return self._append(
            rank, storages.file(pickles.pickled_tensor(storage, shape)), start, shape
        )

    def _append(
        self, rank: int, archive: Archive, start: tuple[int, ...] | None, shape: tuple[int, ...]
    ) -> StoredChunk:
        offset = self._sizes[rank]
        self._parts[rank].append(archive)
        self._sizes[rank] += archive.size
        return StoredChunk(start, shape, _shard_name(rank), offset, archive.size)

    def _smallest_rank(self) -> int:
        return min(range(len(self._sizes)), key=self._sizes.__getitem__)


def _shard_name(rank: int) -> str:
    return f"__{rank}_0.distcp"
