"""Builds torch state_dicts of model, optimizer and scheduler, and describes what was omitted."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.ckpt.contents import CheckpointContents, OptimizerState, ParamGroup, Tensor
from holdfast.ckpt.convert.archives import Storages
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.pickles import ReducedCall
from holdfast.ckpt.state_dicts.optimizers import SCALAR_STATES
from holdfast.ckpt.state_dicts.values import is_plain

#: Keys under which frameworks store a scheduler's state.
_SCHEDULERS = ("scheduler", "lr_scheduler", "lr_schedulers", "schedulers")
#: The key that identifies a torch scheduler.
_SCHEDULER_MARK = "last_epoch"
#: Keys of the step count, which the neutral form stores separately.
_STEPS = frozenset({"step", "global_step", "global_steps", "iteration"})


def model_state_dict(
    contents: CheckpointContents, options: ConvertOptions, storages: Storages, prefix: str = ""
) -> dict[str, Any]:
    """Return weights and buffers by name; tied names share one storage."""
    state_dict: dict[str, Any] = {}
    for name, tensor in contents.tensors.items():
        state_dict[prefix + name] = storages.tensor(tensor, options.weight_dtype(tensor))
    for name, first in contents.ties.items():
        state_dict[prefix + name] = state_dict[prefix + first]
    return state_dict


def optimizer_by_number(contents: CheckpointContents, storages: Storages) -> dict[str, Any] | None:
    """Return ``Optimizer.state_dict()`` with names next to numbers, as of torch 2.6.

    None: the source has no optimizer.
    """
    optimizer = contents.optimizer
    if optimizer is None:
        return None
    state: dict[int, Any] = {}
    groups: list[dict[str, Any]] = []
    count = 0
    for group in optimizer_groups(contents, optimizer):
        numbers = list(range(count, count + len(group.params)))
        count += len(numbers)
        groups.append(
            {**plain_options(group), "params": numbers, "param_names": list(group.params)}
        )
        for number, name in zip(numbers, group.params, strict=True):
            if param_state := _param_state(contents, optimizer, name, storages):
                state[number] = param_state
    return {"state": state, "param_groups": groups}


def optimizer_by_name(contents: CheckpointContents, storages: Storages) -> dict[str, Any] | None:
    """Return the result of ``get_optimizer_state_dict(full_state_dict=True)``.

    None: the source has no optimizer.
    """
    optimizer = contents.optimizer
    if optimizer is None:
        return None
    groups = optimizer_groups(contents, optimizer)
    names = [name for group in groups for name in group.params]
    state = {
        name: param_state
        for name in names
        if (param_state := _param_state(contents, optimizer, name, storages))
    }
    return {
        "state": state,
        "param_groups": [
            {**plain_options(group), "params": list(group.params)} for group in groups
        ],
    }


def optimizer_groups(
    contents: CheckpointContents, optimizer: OptimizerState
) -> tuple[ParamGroup, ...]:
    """Return the source's groups, or one of all parameters with state, in model order."""
    if optimizer.groups:
        return optimizer.groups
    return (
        ParamGroup(
            params=tuple(name for name in contents.tensors if name in optimizer.tensors), options={}
        ),
    )


def plain_options(group: ParamGroup) -> dict[str, Any]:
    """Return the group's options that are plain values."""
    return {
        key: value for key, value in group.options.items() if key not in _OWN and is_plain(value)
    }


_OWN = frozenset({"params", "param_names"})


def _param_state(
    contents: CheckpointContents, optimizer: OptimizerState, name: str, storages: Storages
) -> dict[str, Any]:
    """Return the state of one parameter; may be empty. torch puts ``step`` first."""
    tensors = optimizer.tensors.get(name, {})
    numbers = dict(optimizer.numbers.get(name, {}))
    if tensors and "step" not in numbers and isinstance(contents.step, int):
        numbers["step"] = contents.step
    return {
        **{key: _number(key, value, storages) for key, value in numbers.items()},
        **{key: storages.tensor(entry) for key, entry in tensors.items()},
    }


def _number(key: str, value: float, storages: Storages) -> Any:
    """Return a separate tensor per parameter, because torch increments them in place."""
    return (
        storages.numbers(struct.pack("<f", value), "float32", ()) if key in SCALAR_STATES else value
    )


def nested_values(contents: CheckpointContents, storages: Storages | None = None) -> dict[str, Any]:
    """Return the other plain data as nested dicts, with tensors if ``storages`` is given.

    What is neither is omitted (:func:`describe_losses` reports it).
    """
    nested: dict[str, Any] = {}
    at: Any
    for path, stored in contents.values.items():
        value = stored if storages is None else _stored_tensors(stored, storages)
        if not is_plain(value, (ReducedCall,)):
            continue
        at, (*parents, last) = nested, path.split(".")
        for key in parents:
            at = at.setdefault(key, {}) if isinstance(at, dict) else at
        if isinstance(at, dict):
            at[last] = value
        else:  # a child is stored under its own path
            nested[path] = value
    return {key: _restore_lists(value) for key, value in nested.items()}


def _stored_tensors(value: Any, storages: Storages) -> Any:
    """Replace the tensors in a value by those of the file that is written."""
    if isinstance(value, Tensor):
        return storages.tensor(value)
    if isinstance(value, dict):
        return {key: _stored_tensors(entry, storages) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_stored_tensors(entry, storages) for entry in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value


def scheduler_state(contents: CheckpointContents) -> Mapping[str, Any] | None:
    """Return the state of the scheduler, if the source has one of torch."""
    nested = nested_values(contents)
    for key in _SCHEDULERS:
        state = nested.get(key)
        state = state[0] if isinstance(state, list) and state else state
        if isinstance(state, dict) and _SCHEDULER_MARK in state:
            return state
    return None


def is_scheduler_value(path: str) -> bool:
    """Return whether the value at this path belongs to a scheduler's state."""
    return path.partition(".")[0] in _SCHEDULERS


def describe_losses(
    contents: CheckpointContents,
    options: ConvertOptions,
    *,
    optimizer: bool = True,
    values: bool = True,
) -> Iterator[str]:
    """Yield a sentence per omission; the flags say what the target format supports."""
    stored_optimizer = contents.optimizer
    if stored_optimizer is not None and options.optimizer and not optimizer:
        yield "The optimizer state was not written: the format only holds weights."
    elif stored_optimizer is not None and options.optimizer:
        yield from _optimizer_left_out(stored_optimizer)
    other_values = {
        key: value
        for key, value in contents.values.items()
        if key not in _STEPS or value != contents.step
    }
    if other_values and not values:
        yield f"Not written, because the format cannot store them: {list_names(other_values)}."
    lost = [key for key, value in other_values.items() if not is_plain(value, (Tensor,))]
    if lost and values:
        yield f"Not written, because they are not plain values: {list_names(lost)}."


def _optimizer_left_out(optimizer: OptimizerState) -> Iterator[str]:
    if not optimizer.groups:
        yield (
            "The source does not record the optimizer's groups: one group of all its parameters "
            "was written, without options."
        )
    names = {name for group in optimizer.groups for name in group.params}
    if optimizer.groups and (lost := [name for name in optimizer.tensors if name not in names]):
        yield (
            "Optimizer state of parameters in none of its groups was not written: "
            f"{list_names(lost)}."
        )
    options = {
        key
        for group in optimizer.groups
        for key, value in group.options.items()
        if not is_plain(value)
    }
    if options:
        yield (
            "Optimizer options that are not plain values were not written: "
            f"{list_names(sorted(options))}."
        )


def _restore_lists(value: Any) -> Any:
    """Convert dicts with keys ``0``, ``1``, ... back into lists."""
    if not isinstance(value, dict):
        return value
    converted = {key: _restore_lists(item) for key, item in value.items()}
    return (
        list(converted.values())
        if converted and list(converted) == [str(at) for at in range(len(converted))]
        else converted
    )


def list_names(names: Iterable[str], most: int = 5) -> str:
    """Return the first names, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
