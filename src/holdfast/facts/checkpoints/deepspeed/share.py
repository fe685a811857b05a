"""What one tensor-parallel rank of a DeepSpeed checkpoint has, put together over its data-parallel ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.facts.checkpoints.contents import Gap, Group, Optimizer, Piece, Tensor
from holdfast.facts.checkpoints.deepspeed import flat
from holdfast.facts.checkpoints.deepspeed.files import Shard
from holdfast.facts.checkpoints.deepspeed.flat import WEIGHTS, Partition
from holdfast.facts.checkpoints.deepspeed.model import Model, flattened, frozen_parts, model_of, ordered, params_of
from holdfast.facts.checkpoints.files.torch_pickle import Opaque, TensorAt
from holdfast.facts.checkpoints.pieces import Reader

#: Attributes of DeepSpeed's loss scalers that tell where a loss scale stands.
_SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis", "scale_window", "scale_factor")


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """As in :class:`Contents`; ``steps`` are the ranks' files by the step of the optimizer in them."""

    tensors: Mapping[str, Tensor]
    halves: Mapping[str, Tensor]
    ties: Mapping[str, str]
    frozen: frozenset[str]
    buffers: frozenset[str]
    optimizer: Optimizer | None
    steps: Mapping[int, Sequence[Shard]]
    values: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()


def share_of(root: Path, shards: Sequence[Shard], ranks: Mapping[int, Partition], world: int) -> Share | None:
    """What these files have together. None: none of them names the parameters.

    Raises:
        CheckpointUnreadable: a file is not as it describes itself.
    """
    model = model_of(shards)
    if model is None:
        return None
    stage3 = any(shard.place[1] >= 0 for shard in shards)
    left_out = _experts(model, ranks, world)
    states = _states(model, ranks, left_out, stage3=stage3) if ranks else {}
    weights = states.pop(WEIGHTS, {})
    untrained = {name: each for name, each in model.present.items() if name not in model.shapes}
    frozen = frozen_parts(shards, world, model) if stage3 else {}
    found = {**untrained, **frozen, **(weights or model.present)}
    numbers, steps = _numbers(root, model, ranks, left_out) if ranks else ({}, {})
    return Share(
        tensors=ordered({name: each for name, each in found.items() if name not in model.ties}, model),
        halves=ordered(_halves(model, weights), model), steps=steps,
        ties={name: first for name, first in model.ties.items() if first in found},
        frozen=frozenset(name for name in model.frozen if name in found), buffers=model.buffers & found.keys(),
        optimizer=_optimizer(root, model, ranks, states, numbers), values=_scaler(ranks),
        notes=_notes(model, ranks, weights),
        gaps=(*_misfits(model, ranks, stage3=stage3), *_left_out(model, ranks, left_out)),
    )  # fmt: skip


def _states(
    model: Model, ranks: Mapping[int, Partition], left_out: frozenset[int], *, stage3: bool
) -> dict[str, dict[str, Tensor]]:
    """Tensors by state and name; the weights are the state ``fp32``."""
    dtypes = {key: run.dtype for each in ranks.values() for buffers in each.buffers for key, run in buffers.items()}
    shapes, found = model.shapes, {}
    kept = {name for at, group in enumerate(model.groups) if at not in left_out for name in group}
    for key, dtype in dtypes.items():
        placed = _placed(model, ranks, key, stage3=stage3)
        has = _groups_with(ranks, key)
        names = {name for at, group in enumerate(model.groups) if at in has or stage3 for name in group} & kept
        found[key] = {
            name: Tensor(name=name, dtype=dtype, shape=shapes[name], pieces=pieces)
            for name, pieces in placed
            if name in names and (pieces or 0 in shapes[name] or key == WEIGHTS)
        }
    return found


def _placed(
    model: Model, ranks: Mapping[int, Partition], key: str, *, stage3: bool
) -> Iterator[tuple[str, tuple[Piece, ...]]]:
    if stage3:
        yield from flat.parted(model.groups, ranks, key)
        return
    for group, shapes in enumerate(model.groups):
        yield from flat.across(group, shapes, ranks, key)


def _groups_with(ranks: Mapping[int, Partition], key: str) -> set[int]:
    return {at for each in ranks.values() for at, buffers in enumerate(each.buffers) if key in buffers}


def _experts(model: Model, ranks: Mapping[int, Partition], world: int) -> frozenset[int]:
    """Groups that fewer ranks share: experts, of which each rank has others."""
    return frozenset(
        at
        for at in range(len(model.groups))
        if any(at < len(each.counts) and each.counts[at] != world for each in ranks.values())
    )


def _left_out(model: Model, ranks: Mapping[int, Partition], left_out: frozenset[int]) -> Iterator[Gap]:
    for at in sorted(left_out):
        file = next(iter(ranks.values())).shard.file
        names = ", ".join(list(model.groups[at])[:3])
        why = f"group {at} ({names}, ...) is of experts, whose parts are put together in no way that is known here"
        yield Gap(kind="unreadable", file=file, why=why)


def _misfits(model: Model, ranks: Mapping[int, Partition], *, stage3: bool) -> Iterator[Gap]:
    if ranks:
        yield from (flat.misfits_parted if stage3 else flat.misfits_across)(model.groups, ranks)
        yield from flat.misfits_of_states(ranks)


def _halves(model: Model, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The model's own weights beside the optimizer's fp32 ones: 16-bit ones, or the same again where it is in fp32."""
    return {
        name: each
        for name, each in model.present.items()
        if name in weights and each.pieces != weights[name].pieces and each.shape == weights[name].shape
    }


def _numbers(
    root: Path, model: Model, ranks: Mapping[int, Partition], left_out: frozenset[int]
) -> tuple[dict[str, dict[str, float | int]], dict[int, list[Shard]]]:
    """Numbers of each parameter's state, and the ranks by their step."""
    numbers: dict[str, dict[str, float | int]] = {}
    steps: dict[int, list[Shard]] = {}
    with Reader(root) as reader:
        for each in ranks.values():
            found = [_plain(reader, each.shard, group) for group in each.numbers]
            for step in sorted({int(group["step"]) for group in found if "step" in group}):
                steps.setdefault(step, []).append(each.shard)
            for at, (names, group) in enumerate(zip(model.groups, found, strict=False)):
                for name in names if at not in left_out and group else ():
                    numbers.setdefault(name, group)
    return numbers, steps


def _plain(reader: Reader, shard: Shard, group: Mapping[Any, Any]) -> dict[str, Any]:
    """Numbers alone; tensors without dimensions are read."""
    found = {}
    for key, value in group.items():
        number = _value(reader, shard, value)
        if isinstance(number, (int, float)):
            found[str(key)] = int(number) if isinstance(number, float) and number.is_integer() else number
    return found


def _value(reader: Reader, shard: Shard, value: Any) -> Any:
    """The value; that of a tensor of one element is the number in it."""
    if not isinstance(value, TensorAt) or any(n != 1 for n in value.shape):
        return value
    return reader.whole(shard.read.tensor("", value, shard.file)).item()


def _optimizer(
    root: Path,
    model: Model,
    ranks: Mapping[int, Partition],
    states: Mapping[str, Mapping[str, Tensor]],
    numbers: Mapping[str, Mapping[str, float | int]],
) -> Optimizer | None:
    """By names; None where no rank's file is there."""
    if not ranks:
        return None
    tensors: dict[str, dict[str, Tensor]] = {}
    for key, by_name in states.items():
        for name, each in by_name.items():
            tensors.setdefault(name, {})[key] = each
    return Optimizer(tensors=tensors, numbers=numbers, groups=_groups(root, model, next(iter(ranks.values()))))


def _groups(root: Path, model: Model, first: Partition) -> tuple[Group, ...]:
    """The optimizer's; ZeRO-3 numbers its subgroups in them, elastic checkpoints say no options."""
    if not first.options:
        return tuple(Group(params=tuple(names), options={}) for names in model.groups)
    found = []
    with Reader(root) as reader:
        for at, group in enumerate(first.options):
            options = {str(key): _value(reader, first.shard, each) for key, each in group.items() if key != "params"}
            found.append(Group(params=params_of(group, at, model), options=options))
    return tuple(found)


def _scaler(ranks: Mapping[int, Partition]) -> dict[str, Any]:
    """Where fp16's loss scale stands."""
    for each in ranks.values():
        state = each.shard.read.value["optimizer_state_dict"]
        scaler = state.get("loss_scaler")
        found = scaler.__dict__.get("state") if isinstance(scaler, Opaque) else None
        if isinstance(found, Mapping) and state.get("dynamic_loss_scale"):
            return dict(flattened({key: found[key] for key in _SCALER if key in found}, "deepspeed.loss_scaler."))
    return {}


def _notes(model: Model, ranks: Mapping[int, Partition], weights: Mapping[str, Tensor]) -> tuple[str, ...]:
    notes = []
    if not model.lists_frozen and any((each.stage or 0) >= 2 for each in ranks.values()):
        notes.append(
            "It was saved without frozen weights (exclude_frozen_parameters): if there are some, they are not in it."
        )
    if odd := sorted({key for each in ranks.values() for key in each.odd}):
        notes.append(
            f"States of the optimizer that are not laid out as the weights are not read: {', '.join(odd[:5])}."
        )
    if not weights and ranks:
        notes.append("No fp32 weights are in it: the model's own weights stand for them.")
    if not ranks:
        notes.append("No rank's part of the fp32 weights can be read: the model's own weights stand for them.")
    return tuple(notes)
