"""A folder of torch.distributed.checkpoint that ``dcp.load`` reads into FSDP2, FSDP1 or DDP at any world size.

    model.<name>                       weights and buffers; the names of a tied one stand for the same bytes
    optimizer.state.<name>.exp_avg     by name, as get_optimizer_state_dict has it
    optimizer.param_groups.0.lr        the groups, their parameters by name
    step, scheduler.last_epoch, ...    other values, by their paths

Parameters are divided along their first dimension as FSDP2 divides them, a file for each rank.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.actions.conversion import pickles
from holdfast.actions.conversion.archives import Storages
from holdfast.actions.conversion.files import Archive, File, Run, Written
from holdfast.actions.conversion.options import Options
from holdfast.actions.conversion.writers import dcp_index, state_dicts
from holdfast.actions.conversion.writers.dcp_index import Entry, Piece
from holdfast.facts.checkpoints.contents import Contents, Group, Optimizer, Tensor
from holdfast.facts.checkpoints.state_dicts.values import is_plain

#: Numbers that torch keeps as fp32 tensors without dimensions (torch/optim/{adam,nadam,asgd}.py).
_TENSORS = frozenset({"step", "mu_product", "eta", "mu"})
Path = tuple[str | int, ...]


def write(contents: Contents, options: Options) -> Written:
    """The folder."""
    folder = Folder(options.ranks)
    put_model(folder, contents, options)
    if options.optimizer and contents.optimizer is not None:
        put_optimizer(folder, contents, contents.optimizer)
    if isinstance(contents.step, int) and "step" not in contents.values:
        folder.value(("step",), contents.step)
    for path, value in flattened(state_dicts.values(contents)):
        folder.value(path, value)
    for name, value in contents.values.items():
        if isinstance(value, Tensor):
            folder.tensor(tuple(name.split(".")), value, value.dtype, divided=False)
    return Written(folder.files(), tuple(state_dicts.left_out(contents, options)))


def put_model(folder: Folder, contents: Contents, options: Options) -> None:
    """Weights and buffers."""
    for name, tensor in contents.tensors.items():
        divided = name not in contents.buffers
        folder.tensor(("model", name), tensor, options.weight_dtype(tensor), divided=divided)
    for name, first in contents.ties.items():
        if first in contents.tensors:
            folder.same(("model", name), ("model", first))


def put_optimizer(folder: Folder, contents: Contents, optimizer: Optimizer, *, groups: bool = True) -> None:
    """The states by name, and the groups."""
    for name in dict.fromkeys((*optimizer.tensors, *optimizer.numbers)):
        param = contents.tensors.get(name)
        for key, tensor in optimizer.tensors.get(name, {}).items():
            divided = param is not None and tensor.shape == param.shape
            folder.tensor(("optimizer", "state", name, key), tensor, tensor.dtype, divided=divided)
        numbers = dict(optimizer.numbers.get(name, {}))
        if "step" not in numbers and isinstance(contents.step, int):
            numbers["step"] = contents.step
        for key, number in numbers.items():
            path = ("optimizer", "state", name, key)
            if key in _TENSORS:
                folder.number(path, float(number))
            else:
                folder.value(path, number)
    for at, group in enumerate(groups_of(contents, optimizer) if groups else ()):
        for key, value in {**group.options, "params": list(group.params)}.items():
            if key != "param_names" and is_plain(value):
                folder.value(("optimizer", "param_groups", at, key), value)


def groups_of(contents: Contents, optimizer: Optimizer) -> tuple[Group, ...]:
    """Those of the source; where it does not say, one of all parameters that have a state, in the model's order."""
    if optimizer.groups:
        return optimizer.groups
    return (Group(params=tuple(name for name in contents.tensors if name in optimizer.tensors), options={}),)


def flattened(value: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Each value by its path, as torch takes a nested state_dict apart: a list stays whole unless dicts are in it."""
    for key, each in value.items():
        yield from _flattened(each, (*path, key))


def _flattened(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, Mapping) and value:
        yield from flattened(value, path)
    elif isinstance(value, list) and any(isinstance(each, (Mapping, list)) for each in value):
        for at, each in enumerate(value):
            yield from _flattened(each, (*path, at))
    else:
        yield path, value


class Folder:
    """The files of so many ranks, and the index of what is in them."""

    def __init__(self, ranks: int, below: str = "") -> None:
        self._below = below
        self._parts: list[list[Archive]] = [[] for _ in range(ranks)]
        self._sizes = [0] * ranks
        self._entries: dict[Path, Entry] = {}

    def tensor(self, path: Path, tensor: Tensor, dtype: str, *, divided: bool) -> None:
        """A tensor: a piece in each rank's file, or whole in that of the rank with the least."""
        ranks = len(self._parts)
        if not (divided and tensor.shape and tensor.numel and ranks > 1):
            pieces = [self._piece(self._least(), tensor, dtype, 0, tensor.shape)]
        else:
            rows = -(-tensor.shape[0] // ranks)  # as torch.chunk divides
            pieces = [
                self._piece(rank, tensor, dtype, at, (min(rows, tensor.shape[0] - at), *tensor.shape[1:]))
                for rank, at in enumerate(range(0, tensor.shape[0], rows))
            ]
        self._entries[path] = Entry(path, dtype, tensor.shape, tuple(pieces))

    def same(self, path: Path, other: Path) -> None:
        """A second name of a tensor."""
        known = self._entries[other]
        self._entries[path] = Entry(path, known.dtype, known.shape, known.pieces)

    def number(self, path: Path, value: float) -> None:
        """A number as a tensor without dimensions."""
        storages = Storages()
        archive = storages.file(storages.numbers(struct.pack("<f", value), "float32", ()))
        self._entries[path] = Entry(path, "float32", (), (self._put(self._least(), archive, (), ()),))

    def value(self, path: Path, value: Any) -> None:
        """A value that is no tensor."""
        self._entries[path] = Entry(path, "", (), (self._put(self._least(), Storages().file(value), None, ()),))

    def files(self) -> tuple[File, ...]:
        """All of them, the index last."""
        shards = [File(f"{self._below}{_name(rank)}", tuple(parts)) for rank, parts in enumerate(self._parts)]
        return (*shards, File(f"{self._below}{dcp_index.FILE}", (dcp_index.made(self._entries.values()),)))

    def _piece(self, rank: int, tensor: Tensor, dtype: str, row: int, shape: tuple[int, ...]) -> Piece:
        storages = Storages()
        first = row * math.prod(tensor.shape[1:])
        storage = storages.storage((Run(tensor, first, first + math.prod(shape), dtype),), dtype)
        start = (row, *(0 for _ in shape[1:])) if shape else ()
        return self._put(rank, storages.file(pickles.tensor(storage, shape)), start, shape)

    def _put(self, rank: int, archive: Archive, start: tuple[int, ...] | None, shape: tuple[int, ...]) -> Piece:
        offset = self._sizes[rank]
        self._parts[rank].append(archive)
        self._sizes[rank] += archive.size
        return Piece(start, shape, _name(rank), offset, archive.size)

    def _least(self) -> int:
        return min(range(len(self._sizes)), key=self._sizes.__getitem__)


def _name(rank: int) -> str:
    return f"__{rank}_0.distcp"
