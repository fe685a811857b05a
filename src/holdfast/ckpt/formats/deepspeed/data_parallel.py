"""Merges the data-parallel ranks of one model-parallel rank of a DeepSpeed checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.ckpt.contents import FileProblem, OptimizerState, ParamGroup, Tensor, TensorShard
from holdfast.ckpt.files.torch_pickle import OpaqueObject, TensorRef
from holdfast.ckpt.formats.deepspeed import flat
from holdfast.ckpt.formats.deepspeed.files import RankFile
from holdfast.ckpt.formats.deepspeed.flat import WEIGHTS, Partition
from holdfast.ckpt.formats.deepspeed.model import (
    RankModel,
    flatten,
    frozen_tensors,
    group_params,
    in_model_order,
    read_model,
)
from holdfast.ckpt.tensor_blocks import TensorReader

#: Attributes of DeepSpeed's loss scalers that hold their state.
_SCALER = (
    "cur_scale",
    "cur_iter",
    "last_overflow_iter",
    "cur_hysteresis",
    "scale_window",
    "scale_factor",
)


class MergedRanks(msgspec.Struct, frozen=True, kw_only=True):
    """Fields as in :class:`CheckpointContents`; ``steps``: files by their optimizer step."""

    tensors: Mapping[str, Tensor]
    halves: Mapping[str, Tensor]
    ties: Mapping[str, str]
    frozen: frozenset[str]
    buffers: frozenset[str]
    optimizer: OptimizerState | None
    steps: Mapping[int, Sequence[RankFile]]
    values: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    problems: tuple[FileProblem, ...] = ()


def merge_data_parallel(
    root: Path, rank_files: Sequence[RankFile], ranks: Mapping[int, Partition], world: int
) -> MergedRanks | None:
    """Merge these files. None: none of them names the parameters.

    Raises:
        CheckpointUnreadable: a file does not match its description.
    """
    model = read_model(rank_files)
    if model is None:
        return None
    stage3 = any(rank_file.position[1] >= 0 for rank_file in rank_files)
    expert_groups = _expert_groups(model, ranks, world)
    states = _read_states(model, ranks, expert_groups, stage3=stage3) if ranks else {}
    weights = states.pop(WEIGHTS, {})
    untrained = {name: tensor for name, tensor in model.present.items() if name not in model.shapes}
    frozen = frozen_tensors(rank_files, world, model) if stage3 else {}
    tensors = {**untrained, **frozen, **(weights or model.present)}
    numbers, steps = _read_numbers(root, model, ranks, expert_groups) if ranks else ({}, {})
    return MergedRanks(
        tensors=in_model_order(
            {name: tensor for name, tensor in tensors.items() if name not in model.ties}, model
        ),
        halves=in_model_order(_halves(model, weights), model),
        steps=steps,
        ties={name: first for name, first in model.ties.items() if first in tensors},
        frozen=frozenset(name for name in model.frozen if name in tensors),
        buffers=model.buffers & tensors.keys(),
        optimizer=_optimizer(root, model, ranks, states, numbers),
        values=_loss_scaler(ranks),
        notes=_notes(model, ranks, weights),
        problems=(
            *_misfits(model, ranks, stage3=stage3),
            *_left_out_problems(model, ranks, expert_groups),
        ),
    )


def _read_states(
    model: RankModel, ranks: Mapping[int, Partition], expert_groups: frozenset[int], *, stage3: bool
) -> dict[str, dict[str, Tensor]]:
    """Return tensors by state and name; the weights are the state ``fp32``."""
    dtypes = {
        key: run.dtype
        for partition in ranks.values()
        for buffers in partition.buffers
        for key, run in buffers.items()
    }
    shapes, states = model.shapes, {}
    merged_names = {
        name
        for group_number, group in enumerate(model.groups)
        if group_number not in expert_groups
        for name in group
    }
    for key, dtype in dtypes.items():
        placed = _state_shards(model, ranks, key, stage3=stage3)
        groups_with_key = _groups_with(ranks, key)
        names = {
            name
            for group_number, group in enumerate(model.groups)
            if group_number in groups_with_key or stage3
            for name in group
        } & merged_names
        states[key] = {
            name: Tensor(name=name, dtype=dtype, shape=shapes[name], shards=shards)
            for name, shards in placed
            if name in names and (shards or 0 in shapes[name] or key == WEIGHTS)
        }
    return states


def _state_shards(
    model: RankModel, ranks: Mapping[int, Partition], key: str, *, stage3: bool
) -> Iterator[tuple[str, tuple[TensorShard, ...]]]:
    if stage3:
        yield from flat.zero3_shards(model.groups, ranks, key)
        return
    for group, shapes in enumerate(model.groups):
        yield from flat.zero12_shards(group, shapes, ranks, key)


def _groups_with(ranks: Mapping[int, Partition], key: str) -> set[int]:
    return {
        at
        for partition in ranks.values()
        for at, buffers in enumerate(partition.buffers)
        if key in buffers
    }


def _expert_groups(model: RankModel, ranks: Mapping[int, Partition], world: int) -> frozenset[int]:
    """Return groups that fewer ranks share: experts, which differ between ranks."""
    return frozenset(
        at
        for at in range(len(model.groups))
        if any(
            at < len(partition.counts) and partition.counts[at] != world
            for partition in ranks.values()
        )
    )


def _left_out_problems(
    model: RankModel, ranks: Mapping[int, Partition], expert_groups: frozenset[int]
) -> Iterator[FileProblem]:
    for at in sorted(expert_groups):
        file = next(iter(ranks.values())).rank_file.file
        names = ", ".join(list(model.groups[at])[:3])
        why = f"group {at} ({names}, ...) holds experts, whose shards cannot be merged"
        yield FileProblem(kind="unreadable", file=file, why=why)


def _misfits(
    model: RankModel, ranks: Mapping[int, Partition], *, stage3: bool
) -> Iterator[FileProblem]:
    if ranks:
        yield from (flat.zero3_misfits if stage3 else flat.zero12_misfits)(model.groups, ranks)
        yield from flat.state_misfits(ranks)


def _halves(model: RankModel, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the model's own weights beside the optimizer's fp32 ones."""
    return {
        name: entry
        for name, entry in model.present.items()
        if name in weights
        and entry.shards != weights[name].shards
        and entry.shape == weights[name].shape
    }


def _read_numbers(
    root: Path, model: RankModel, ranks: Mapping[int, Partition], expert_groups: frozenset[int]
) -> tuple[dict[str, dict[str, float | int]], dict[int, list[RankFile]]]:
    """Return the numbers of each parameter's state, and the rank files by step."""
    numbers: dict[str, dict[str, float | int]] = {}
    steps: dict[int, list[RankFile]] = {}
    with TensorReader(root) as reader:
        for partition in ranks.values():
            groups = [
                _plain_numbers(reader, partition.rank_file, group) for group in partition.numbers
            ]
            for step in sorted({int(group["step"]) for group in groups if "step" in group}):
                steps.setdefault(step, []).append(partition.rank_file)
            for at, (names, group) in enumerate(zip(model.groups, groups, strict=False)):
                for name in names if at not in expert_groups and group else ():
                    numbers.setdefault(name, group)
    return numbers, steps


def _plain_numbers(
    reader: TensorReader, rank_file: RankFile, group: Mapping[Any, Any]
) -> dict[str, Any]:
    """Return only numbers; scalar tensors are read."""
    numbers = {}
    for key, value in group.items():
        number = _read_value(reader, rank_file, value)
        if isinstance(number, (int, float)):
            numbers[str(key)] = (
                int(number) if isinstance(number, float) and number.is_integer() else number
            )
    return numbers


def _read_value(reader: TensorReader, rank_file: RankFile, value: Any) -> Any:
    """Return the value; for a one-element tensor, the number in it."""
    if not isinstance(value, TensorRef) or any(n != 1 for n in value.shape):
        return value
    return reader.read_tensor(rank_file.read.tensor("", value, rank_file.file)).item()


def _optimizer(
    root: Path,
    model: RankModel,
    ranks: Mapping[int, Partition],
    states: Mapping[str, Mapping[str, Tensor]],
    numbers: Mapping[str, Mapping[str, float | int]],
) -> OptimizerState | None:
    """Return the optimizer by name; None if no rank's file exists."""
    if not ranks:
        return None
    tensors: dict[str, dict[str, Tensor]] = {}
    for key, by_name in states.items():
        for name, entry in by_name.items():
            tensors.setdefault(name, {})[key] = entry
    return OptimizerState(
        tensors=tensors, numbers=numbers, groups=_groups(root, model, next(iter(ranks.values())))
    )


def _groups(root: Path, model: RankModel, first: Partition) -> tuple[ParamGroup, ...]:
    """Return the parameter groups.

    ZeRO-3 lists its subgroups in them; elastic checkpoints store no options.
    """
    if not first.options:
        return tuple(ParamGroup(params=tuple(names), options={}) for names in model.groups)
    groups = []
    with TensorReader(root) as reader:
        for number, group in enumerate(first.options):
            options = {
                str(key): _read_value(reader, first.rank_file, value)
                for key, value in group.items()
                if key != "params"
            }
            groups.append(ParamGroup(params=group_params(group, number, model), options=options))
    return tuple(groups)


def _loss_scaler(ranks: Mapping[int, Partition]) -> dict[str, Any]:
    """Return the state of fp16's loss scaler."""
    for partition in ranks.values():
        state = partition.rank_file.read.value["optimizer_state_dict"]
        scaler = state.get("loss_scaler")
        scaler_state = scaler.__dict__.get("state") if isinstance(scaler, OpaqueObject) else None
        if isinstance(scaler_state, Mapping) and state.get("dynamic_loss_scale"):
            return dict(
                flatten(
                    {key: scaler_state[key] for key in _SCALER if key in scaler_state},
                    "deepspeed.loss_scaler.",
                )
            )
    return {}


def _notes(
    model: RankModel, ranks: Mapping[int, Partition], weights: Mapping[str, Tensor]
) -> tuple[str, ...]:
    notes = []
    if not model.lists_frozen and any((partition.stage or 0) >= 2 for partition in ranks.values()):
        notes.append(
            "saved without frozen weights (exclude_frozen_parameters): any such weights are missing"
        )
    if odd := sorted({key for entry in ranks.values() for key in entry.odd}):
        notes.append(f"optimizer states with a different layout are not read: {', '.join(odd[:5])}")
    if not weights and ranks:
        notes.append("no fp32 weights: using the model's own weights")
    if not ranks:
        notes.append("no rank's fp32 weights can be read: using the model's own weights")
    return tuple(notes)
