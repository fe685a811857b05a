"""The state_dicts of torch: of a model, of an optimizer by number or by name, of a scheduler; and what was left out."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.actions.conversion.archives import Storages
from holdfast.actions.conversion.options import Options
from holdfast.actions.conversion.pickles import Call
from holdfast.facts.checkpoints.contents import Contents, Group, Optimizer, Tensor
from holdfast.facts.checkpoints.state_dicts.values import is_plain

#: Numbers of an optimizer that torch keeps as fp32 tensors without dimensions (torch/optim/{adam,nadam,asgd}.py).
_TENSORS = frozenset({"step", "mu_product", "eta", "mu"})
#: Where frameworks put the state of a learning rate scheduler.
_SCHEDULERS = ("scheduler", "lr_scheduler", "lr_schedulers", "schedulers")
#: What tells a scheduler of torch from that of another library.
_SCHEDULER_MARK = "last_epoch"
#: What frameworks call the number of steps, which has its own place in the neutral form.
_STEPS = frozenset({"step", "global_step", "global_steps", "iteration"})


def of_model(contents: Contents, options: Options, storages: Storages, prefix: str = "") -> dict[str, Any]:
    """Weights and buffers by name; the names of a tied one share their storage."""
    made: dict[str, Any] = {}
    for name, tensor in contents.tensors.items():
        made[prefix + name] = storages.tensor(tensor, options.weight_dtype(tensor))
    for name, first in contents.ties.items():
        made[prefix + name] = made[prefix + first]
    return made


def by_number(contents: Contents, storages: Storages) -> dict[str, Any] | None:
    """As ``Optimizer.state_dict()`` has it, with the names beside the numbers as torch 2.6 and later keep them.

    None where the source has no optimizer.
    """
    optimizer = contents.optimizer
    if optimizer is None:
        return None
    state: dict[int, Any] = {}
    groups: list[dict[str, Any]] = []
    count = 0
    for group in _groups(contents, optimizer):
        numbers = list(range(count, count + len(group.params)))
        count += len(numbers)
        groups.append({**_options(group), "params": numbers, "param_names": list(group.params)})
        for number, name in zip(numbers, group.params, strict=True):
            if found := _state(contents, optimizer, name, storages):
                state[number] = found
    return {"state": state, "param_groups": groups}


def by_name(contents: Contents, storages: Storages) -> dict[str, Any] | None:
    """As ``get_optimizer_state_dict(full_state_dict=True)`` has it. None where the source has no optimizer."""
    optimizer = contents.optimizer
    if optimizer is None:
        return None
    groups = _groups(contents, optimizer)
    names = [name for group in groups for name in group.params]
    state = {name: each for name in names if (each := _state(contents, optimizer, name, storages))}
    return {"state": state, "param_groups": [{**_options(group), "params": list(group.params)} for group in groups]}


def _groups(contents: Contents, optimizer: Optimizer) -> tuple[Group, ...]:
    """Those of the source; where it does not say, one of all parameters that have a state, in the model's order."""
    if optimizer.groups:
        return optimizer.groups
    return (Group(params=tuple(name for name in contents.tensors if name in optimizer.tensors), options={}),)


def _options(group: Group) -> dict[str, Any]:
    return {key: value for key, value in group.options.items() if key not in _OWN and is_plain(value)}


_OWN = frozenset({"params", "param_names"})


def _state(contents: Contents, optimizer: Optimizer, name: str, storages: Storages) -> dict[str, Any]:
    """The state of one parameter; empty where it has none yet. Torch puts ``step`` first."""
    tensors = optimizer.tensors.get(name, {})
    numbers = dict(optimizer.numbers.get(name, {}))
    if tensors and "step" not in numbers and isinstance(contents.step, int):
        numbers["step"] = contents.step
    return {
        **{key: _number(key, value, storages) for key, value in numbers.items()},
        **{key: storages.tensor(each) for key, each in tensors.items()},
    }


def _number(key: str, value: float, storages: Storages) -> Any:
    """One of its own for each parameter: torch counts them up in place."""
    return storages.numbers(struct.pack("<f", value), "float32", ()) if key in _TENSORS else value


def values(contents: Contents, storages: Storages | None = None) -> dict[str, Any]:
    """The other plain data as it was nested, and tensors of it where there are storages for them.

    What is neither is left out (:func:`left_out` says so).
    """
    made: dict[str, Any] = {}
    at: Any
    for path, found in contents.values.items():
        value = storages.tensor(found) if storages is not None and isinstance(found, Tensor) else found
        if not isinstance(value, Call) and not is_plain(value):
            continue
        at, (*parents, last) = made, path.split(".")
        for each in parents:
            at = at.setdefault(each, {}) if isinstance(at, dict) else at
        if isinstance(at, dict):
            at[last] = value
        else:  # a part of it stands there by its own path
            made[path] = value
    return {key: _listed(value) for key, value in made.items()}


def scheduler(contents: Contents) -> Mapping[str, Any] | None:
    """The state of the learning rate scheduler, where the source has one of torch's."""
    found = values(contents)
    for key in _SCHEDULERS:
        state = found.get(key)
        state = state[0] if isinstance(state, list) and state else state
        if isinstance(state, dict) and _SCHEDULER_MARK in state:
            return state
    return None


def is_of_scheduler(path: str) -> bool:
    """The value at this path belongs to the state of a learning rate scheduler."""
    return path.partition(".")[0] in _SCHEDULERS


def left_out(contents: Contents, options: Options, *, optimizer: bool = True, values: bool = True) -> Iterator[str]:
    """A sentence for each thing of the source that is not in what was written; the flags say what the target holds."""
    found = contents.optimizer
    if found is not None and options.optimizer and not optimizer:
        yield "The optimizer's state is not in it: the format holds weights alone."
    elif found is not None and options.optimizer:
        yield from _optimizer_left_out(found)
    known = {key: value for key, value in contents.values.items() if key not in _STEPS or value != contents.step}
    if known and not values:
        yield f"Not in it, because the format has no place for them: {_listing(known)}."
    lost = [key for key, value in known.items() if not isinstance(value, Tensor) and not is_plain(value)]
    if lost and values:
        yield f"Not in it, because they are no plain values: {_listing(lost)}."


def _optimizer_left_out(found: Optimizer) -> Iterator[str]:
    if not found.groups:
        yield "The source does not say the optimizer's groups: one of all its parameters was written, without options."
    names = {name for group in found.groups for name in group.params}
    if found.groups and (lost := [name for name in found.tensors if name not in names]):
        yield f"The optimizer's state of what is in none of its groups is not in it: {_listing(lost)}."
    options = {key for group in found.groups for key, value in group.options.items() if not is_plain(value)}
    if options:
        yield f"Options of the optimizer that are no plain values are not in it: {_listing(sorted(options))}."


def _listed(value: Any) -> Any:
    """Dicts whose keys are ``0``, ``1``, ... are the lists that they were before they were told by their paths."""
    if not isinstance(value, dict):
        return value
    made = {key: _listed(each) for key, each in value.items()}
    return list(made.values()) if made and list(made) == [str(at) for at in range(len(made))] else made


def _listing(names: Iterable[str], most: int = 5) -> str:
    """Some of the names, and how many there are besides."""
    every = list(names)
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
