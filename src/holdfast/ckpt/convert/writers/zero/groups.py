"""Selects the tensors that ZeRO shards: trained parameters by optimizer group.

DeepSpeed's flat buffers have no names: an engine can load the checkpoint only if its optimizer has
the same groups with the same parameters in the same order as the source.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.ckpt.contents import CheckpointContents, OptimizerState, ParamGroup, Tensor
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.writers.state_dicts import list_names
from holdfast.ckpt.state_dicts.values import is_plain

#: The dtype of ZeRO's weights and moments, whatever the model's compute dtype.
MASTER_DTYPE = "float32"
#: Last name components of common buffers, for sources that do not identify buffers.
_BUFFERS = frozenset(
    {
        "running_mean",
        "running_var",
        "num_batches_tracked",
        "inv_freq",
        "position_ids",
        "token_type_ids",
    }
)
_NOT_OPTIONS = frozenset({"params", "param_names"})


class FlatGroup(msgspec.Struct, frozen=True, kw_only=True):
    """An optimizer group: parameters in order, states by name, and numbers shared by all."""

    params: tuple[Tensor, ...]
    options: Mapping[str, Any]
    states: Mapping[str, Mapping[str, Tensor]] = {}
    numbers: Mapping[str, float | int] = {}

    @property
    def numel(self) -> int:
        """Return the elements of all parameters."""
        return sum(name.numel for name in self.params)


class ZeroLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The model as ZeRO stores it. ``losses``: sentences on source data it cannot store."""

    groups: tuple[FlatGroup, ...]
    frozen: tuple[Tensor, ...]
    buffers: tuple[Tensor, ...]
    optimizer: bool
    losses: tuple[str, ...]

    @property
    def trained(self) -> Iterator[Tensor]:
        """Return the parameters of all groups."""
        return (param for group in self.groups for param in group.params)


def build_zero_layout(contents: CheckpointContents, options: ConvertOptions) -> ZeroLayout:
    """Classify the tensors.

    Without an optimizer, all parameters not known to be frozen form one group.
    """
    optimizer = contents.optimizer if options.optimizer else None
    losses: list[str] = []
    groups = tuple(_groups(contents, optimizer, losses))
    trained = {tensor.name for group in groups for tensor in group.params}
    rest = [tensor for tensor in contents.tensors.values() if tensor.name not in trained]
    buffers = tuple(tensor for tensor in rest if _is_buffer(tensor, contents))
    frozen = tuple(tensor for tensor in rest if not _is_buffer(tensor, contents))
    losses += _warnings(contents, groups, frozen)
    return ZeroLayout(
        groups=groups,
        frozen=frozen,
        buffers=buffers,
        optimizer=optimizer is not None,
        losses=tuple(losses),
    )


def _groups(
    contents: CheckpointContents, optimizer: OptimizerState | None, losses: list[str]
) -> Iterator[FlatGroup]:
    if optimizer is None:
        params = tuple(
            tensor for tensor in contents.tensors.values() if _may_train(tensor, contents)
        )
        if params:
            yield FlatGroup(params=params, options={})
        return
    assigned: set[str] = set()
    for group in optimizer.groups or (_only_group(contents, optimizer, losses),):
        names = dict.fromkeys(contents.ties.get(name, name) for name in group.params)
        absent = [name for name in names if name not in contents.tensors]
        if absent:
            losses.append(
                "Optimizer parameters missing from the model were not written: "
                f"{list_names(absent)}."
            )
        members = [
            contents.tensors[name] for name in names if name not in assigned and name not in absent
        ]
        assigned.update(names)
        params = tuple(
            tensor
            for tensor in members
            if tensor.name not in contents.frozen and tensor.numel and _has_fraction(tensor)
        )
        if params:
            yield _flat_group(contents, optimizer, group, params, losses)


def _only_group(
    contents: CheckpointContents, optimizer: OptimizerState, losses: list[str]
) -> ParamGroup:
    losses.append(
        "The source does not record the optimizer's groups: one group of all its parameters was "
        "written, without options."
    )
    return ParamGroup(
        params=tuple(name for name in contents.tensors if name in optimizer.tensors), options={}
    )


def _flat_group(
    contents: CheckpointContents,
    optimizer: OptimizerState,
    group: ParamGroup,
    params: tuple[Tensor, ...],
    losses: list[str],
) -> FlatGroup:
    """Return what ZeRO can store: states of the parameter's shape, and numbers common to all."""
    states: dict[str, dict[str, Tensor]] = {}
    mismatched: dict[str, str] = {}
    for param in params:
        for key, state in optimizer.tensors.get(param.name, {}).items():
            if state.shape == param.shape:
                states.setdefault(key, {})[param.name] = state
            else:
                mismatched.setdefault(key, param.name)
    for key, name in mismatched.items():
        losses.append(
            f"{key} of {name} was not written: ZeRO only stores states of the parameter's shape."
        )
    numbers = _numbers(contents, optimizer, params, losses) if states else {}
    options = {key: value for key, value in group.options.items() if key not in _NOT_OPTIONS}
    unplain = [key for key, value in options.items() if not is_plain(value)]
    if unplain:
        losses.append(
            f"Optimizer options that are not plain values were not written: {list_names(unplain)}."
        )
    plain = {key: value for key, value in options.items() if key not in unplain}
    return FlatGroup(params=params, options=plain, states=states, numbers=numbers)


def _numbers(
    contents: CheckpointContents,
    optimizer: OptimizerState,
    params: Iterable[Tensor],
    losses: list[str],
) -> dict[str, float | int]:
    """Return one value per group, the maximum if parameters differ: flat buffers have one."""
    numbers: dict[str, float | int] = {}
    for param in params:
        for key, value in optimizer.numbers.get(param.name, {}).items():
            if key in numbers and numbers[key] != value:
                low, high = min(value, numbers[key]), max(value, numbers[key])
                losses.append(
                    f"{key} of {param.name} is {low}, of others {high}: ZeRO stores one per group; "
                    "the maximum was written."
                )
            numbers[key] = max(value, numbers.get(key, value))
    if "step" not in numbers and isinstance(contents.step, int):
        numbers["step"] = contents.step
    return numbers


def _is_buffer(tensor: Tensor, contents: CheckpointContents) -> bool:
    """Return whether a tensor in no optimizer group is a buffer, not a frozen parameter."""
    if tensor.name in contents.buffers or tensor.name in contents.frozen:
        return tensor.name in contents.buffers
    return (
        not _has_fraction(tensor) or not tensor.shape or tensor.name.rpartition(".")[2] in _BUFFERS
    )


def _may_train(tensor: Tensor, contents: CheckpointContents) -> bool:
    if tensor.name in contents.frozen or tensor.name in contents.buffers or not tensor.numel:
        return False
    return _has_fraction(tensor) and tensor.name.rpartition(".")[2] not in _BUFFERS


def _has_fraction(tensor: Tensor) -> bool:
    return tensor.dtype.startswith(("float", "bfloat"))


def _warnings(
    contents: CheckpointContents, groups: tuple[FlatGroup, ...], frozen: tuple[Tensor, ...]
) -> Iterator[str]:
    """Yield what the user must know before loading it."""
    state_tensors = [
        tensor
        for group in groups
        for states in (group.states,)
        for by_name in states.values()
        for tensor in by_name.values()
    ]
    double = dict.fromkeys(
        tensor.name
        for tensor in [*(p for g in groups for p in g.params), *state_tensors]
        if tensor.dtype == "float64"
    )
    if double:
        yield (
            f"float64 tensors were rounded to {MASTER_DTYPE}, which ZeRO stores: "
            f"{list_names(double)}."
        )
    if contents.optimizer is not None:
        guessed = [tensor.name for tensor in frozen if tensor.name not in contents.frozen]
        if guessed:
            yield (
                "Assumed to be frozen parameters, because the source does not say: "
                f"{list_names(guessed)}."
            )


def completed_steps(contents: CheckpointContents, laid: ZeroLayout) -> int:
    """Return the steps of the run, or else of the optimizer."""
    if isinstance(contents.step, int):
        return contents.step
    steps = [group.numbers["step"] for group in laid.groups if "step" in group.numbers]
    return math.floor(max(steps, default=0))
