"""DeepSpeed's universal checkpoints (deepspeed/checkpoint/ds_to_universal.py): a folder for each parameter.

    zero/<name>/fp32.pt exp_avg.pt exp_avg_sq.pt step.pt   {"param": tensor, ...}; from ZeRO-3 a flat tensor, no step
    zero/optimizer_state.pt                                the optimizer's groups, and what else is not divided
    [zero_pp_rank_0_]mp_rank_00_model_states.pt            as in the checkpoint it was made from

Shapes, buffers, frozen and tied weights of one made from ZeRO-3 stand in the model's files alone. What is not trained
is taken from there in any case: beside the parameters it was turned into fp32, whole numbers, too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Contents, Format, Gap, Group, Optimizer, Piece, Tensor
from holdfast.facts.checkpoints.deepspeed import files
from holdfast.facts.checkpoints.deepspeed import model as models
from holdfast.facts.checkpoints.deepspeed import zero as deepspeed
from holdfast.facts.checkpoints.deepspeed.files import MOST_RANKS, Shard
from holdfast.facts.checkpoints.deepspeed.flat import WEIGHTS
from holdfast.facts.checkpoints.deepspeed.model import Model, Shape
from holdfast.facts.checkpoints.deepspeed.zero import ODD
from holdfast.facts.checkpoints.files import torch_files
from holdfast.facts.checkpoints.files.gaps import gap_of
from holdfast.facts.checkpoints.files.torch_files import TorchFile
from holdfast.facts.checkpoints.files.torch_pickle import TensorAt
from holdfast.facts.checkpoints.pieces import Reader
from holdfast.findings import Unknown

ZERO = "zero"
_OPTIMIZER = f"{ZERO}/optimizer_state.pt"
_SUFFIX = ".pt"


class _Parts(msgspec.Struct):
    """The files of the parameters: tensors and numbers by name and state, their sizes, and what cannot be read."""

    tensors: dict[str, dict[str, Tensor]]
    numbers: dict[str, dict[str, float | int]]
    sizes: dict[str, int]
    gaps: list[Gap]


def recognises(path: Path) -> Format | None:
    """Universal or None. Raises CheckpointUnreadable: the folder cannot be listed."""
    folder = _folder(path)
    return None if folder is None else Format.UNIVERSAL


def _folder(path: Path) -> Path | None:
    """The folder that holds ``zero``: this one, or the one that ``latest_universal`` or ``latest`` names."""
    if not path.is_dir():
        return None
    if _is_universal(path):
        return path
    for name in (files.LATEST, files.LATEST_UNIVERSAL):
        try:
            folder = files.tag_folder(path, name)
        except CheckpointUnreadable:
            continue
        if folder is not None and _is_universal(folder):
            return folder
        if folder is not None and deepspeed.recognises(folder) is not None:
            return None  # the checkpoint that `latest` names goes before the one that was made from it
    return None


def _is_universal(folder: Path) -> bool:
    if not (folder / ZERO).is_dir():
        return False
    names = files.names_in(folder)
    return bool(names.models) and not names.optims


def read(path: Path) -> Contents:
    """What is in it. Raises CheckpointUnreadable: nothing in it can be read."""
    folder = _folder(path)
    if folder is None:
        raise CheckpointUnreadable(path, why="it is no universal checkpoint of DeepSpeed")
    try:
        return _read(folder)
    except ODD as error:
        why = f"what its files say does not fit together ({type(error).__name__})"
        raise CheckpointUnreadable(folder, why=why) from error


def _read(folder: Path) -> Contents:
    gaps: list[Gap] = []
    names = files.names_in(folder)
    shards = sorted(files.read_all(folder, names.models, gaps).values(), key=lambda each: each.place)
    model = models.model_of([each for each in shards if each.place[0] == shards[0].place[0]]) if shards else None
    if model is None:
        why = f"no file of its model can be read: {gaps[0].why if gaps else 'none names the parameters'}"
        raise CheckpointUnreadable(folder, why=why)
    world = _world(shards)
    with Reader(folder) as reader:
        parts = _parts(folder, model, reader, divided=len({each.place[0] for each in shards}) == 1)
        options, step = _options(folder, reader, parts)
    weights = {name: each[WEIGHTS] for name, each in parts.tensors.items() if WEIGHTS in each}
    frozen = models.frozen_parts(shards, world, model) if names.stage3 else {}
    untrained = {name: each for name, each in model.present.items() if name not in model.shapes}
    found = {**weights, **untrained, **frozen}
    steps = models.steps_of(shards)
    return Contents(
        format=Format.UNIVERSAL, root=str(folder), ties={k: v for k, v in model.ties.items() if v in found},
        tensors=models.ordered({name: each for name, each in found.items() if name not in model.ties}, model),
        halves={k: v for k, v in model.present.items() if k in weights and v.shape == weights[k].shape},
        frozen=frozenset(name for name in model.frozen if name in found), buffers=model.buffers & found.keys(),
        optimizer=_optimizer(model, parts, options, step), world_size=world, writer=models.writer_of(shards),
        step=max(steps, key=lambda each: len(steps[each])) if steps else Unknown("no file of it says"),
        values=models.values_of(shards[0].read.value), files={**names.sizes, **parts.sizes},
        gaps=(*gaps, *parts.gaps, *_missing(model, parts)),
    )  # fmt: skip


def _world(shards: Sequence[Shard]) -> int:
    """Data-parallel ranks of the checkpoint that it was made from."""
    said = shards[0].read.value.get("dp_world_size")
    return said if isinstance(said, int) and 0 < said <= MOST_RANKS else max(each.rank for each in shards) + 1


def _parts(folder: Path, model: Model, reader: Reader, *, divided: bool) -> _Parts:
    """Every file below ``zero``; ``divided``: the model's own shapes are whole ones."""
    found = _Parts({}, {}, {}, [])
    for name, states in sorted(_listed(folder).items()):
        for state, size in sorted(states.items()):
            file = f"{ZERO}/{name}/{state}{_SUFFIX}"
            found.sizes[file] = size
            if name not in model.present or name in model.shapes:
                shape = model.shapes.get(name) if divided else None
                try:
                    _take(found, name, state, torch_files.read(folder / file), file, shape, reader)
                except CheckpointUnreadable as error:
                    found.gaps.append(gap_of(error, file, beside=state != WEIGHTS))
    return found


def _listed(folder: Path) -> dict[str, dict[str, int]]:
    """Names of parameters, their states, and the sizes of the files."""
    found: dict[str, dict[str, int]] = {}
    with os.scandir(folder / ZERO) as entries:
        names = [each.name for each in entries if each.is_dir()]
    for name in names:
        with os.scandir(folder / ZERO / name) as entries:
            found[name] = {
                each.name.removesuffix(_SUFFIX): each.stat().st_size
                for each in entries
                if each.is_file() and each.name.endswith(_SUFFIX)
            }
    return found


def _take(
    found: _Parts, name: str, state: str, read: TorchFile, file: str, shape: Shape | None, reader: Reader
) -> None:
    """One file of a parameter: a tensor, one in a dict, or a number."""
    value = read.value.get("param") if isinstance(read.value, Mapping) else read.value
    if isinstance(value, TensorAt) and (state == "step" or (not value.shape and shape != ())):
        value = reader.whole(read.tensor(name, value, file)).item()
    if isinstance(value, (int, float)):
        number = int(value) if float(value).is_integer() else value
        found.numbers.setdefault(name, {})[state] = number
    elif isinstance(value, TensorAt):
        found.tensors.setdefault(name, {})[state] = _shaped(read.tensor(name, value, file), shape)
    else:
        raise CheckpointUnreadable(read.path, why="it holds no tensor")


def _shaped(tensor: Tensor, shape: Shape | None) -> Tensor:
    """One from ZeRO-3 is flat, and gets its shape."""
    if shape is None or shape == tensor.shape or models.numel(shape) != tensor.numel or len(tensor.shape) != 1:
        return tensor
    pieces = tuple(_flat(piece) for piece in tensor.pieces)
    return Tensor(name=tensor.name, dtype=tensor.dtype, shape=shape, pieces=pieces)


def _flat(piece: Piece) -> Piece:
    return msgspec.structs.replace(piece, flat=True, start=(0,))


def _options(folder: Path, reader: Reader, parts: _Parts) -> tuple[list[dict[Any, Any]], dict[Any, Any]]:
    """The optimizer's parameter groups, and its state by group, where ZeRO-3's step stands."""
    try:
        parts.sizes[_OPTIMIZER] = (folder / _OPTIMIZER).stat().st_size
        read = torch_files.read(folder / _OPTIMIZER)
    except OSError:
        why = "the optimizer's groups are not there"
        parts.gaps.append(Gap(kind="missing", file=_OPTIMIZER, why=why, beside=True))
        return [], {}
    except CheckpointUnreadable as error:
        parts.gaps.append(gap_of(error, _OPTIMIZER, beside=True))
        return [], {}
    value = read.value if isinstance(read.value, Mapping) else {}
    groups = [_plain(read, reader, group) for group in value.get("param_groups") or () if isinstance(group, Mapping)]
    inner = value.get("optimizer_state_dict") or {}
    states = {key: _plain(read, reader, state) for key, state in inner.get("state", {}).items()}
    return groups, {key: state["step"] for key, state in states.items() if isinstance(state.get("step"), (int, float))}


def _plain(read: TorchFile, reader: Reader, values: Mapping[Any, Any]) -> dict[Any, Any]:
    return {
        key: reader.whole(read.tensor("", value, _OPTIMIZER)).item()
        if isinstance(value, TensorAt) and value.shape == ()
        else value
        for key, value in values.items()
    }


def _optimizer(
    model: Model, parts: _Parts, options: Sequence[Mapping[Any, Any]], steps: Mapping[Any, float]
) -> Optimizer | None:
    """By names. None: no parameter has a state."""
    tensors = {name: {k: v for k, v in each.items() if k != WEIGHTS} for name, each in parts.tensors.items()}
    tensors = {name: each for name, each in tensors.items() if each}
    if not tensors:
        return None
    numbers = {name: dict(each) for name, each in parts.numbers.items()}
    for at, shapes in enumerate(model.groups):
        for name in shapes if at in steps else ():
            numbers.setdefault(name, {}).setdefault("step", int(steps[at]))
    groups = []
    for at, group in enumerate(options):
        plain = {str(key): value for key, value in group.items() if key != "params"}
        groups.append(Group(params=models.params_of(group, at, model), options=plain))
    return Optimizer(tensors=tensors, numbers=numbers, groups=tuple(groups))


def _missing(model: Model, parts: _Parts) -> Iterable[Gap]:
    """Files that most parameters have and some do not."""
    common = Counter(state for name in model.shapes for state in parts.tensors.get(name, {}))
    usual = {state for state, count in common.items() if 2 * count > len(model.shapes)} | {WEIGHTS}
    known = {gap.file for gap in parts.gaps}
    for name in model.shapes:
        for state in sorted(usual - parts.tensors.get(name, {}).keys()):
            file = f"{ZERO}/{name}/{state}{_SUFFIX}"
            if file not in known:
                why = f"{state} of {name} is not there"
                yield Gap(kind="missing", file=file, why=why, beside=state != WEIGHTS)
