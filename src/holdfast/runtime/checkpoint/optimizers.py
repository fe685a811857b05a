"""The state of optimizers, by the names of parameters, so that any world size and any order of parameters loads it.

torch's own ``get_optimizer_state_dict`` makes a step with gradients of zero where an optimizer has made none yet (torch
2.4 to 2.13), which counts as one in Adam's bias correction. Here what is not there is not saved, and what was not saved
is not made up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from holdfast.errors import CheckpointMismatch
from holdfast.runtime.checkpoint.versions import DTensor

Names = Mapping[int, str]
#: By parameter and name of the value (``exp_avg``).
State = dict[str, dict[str, Any]]


def state_of(optimizer: torch.optim.Optimizer, names: Names) -> State:
    """What the optimizer keeps for each parameter; tensors are its own, not copies."""
    return {_name(parameter, names): dict(values) for parameter, values in optimizer.state.items() if values}


def groups_of(optimizer: torch.optim.Optimizer, names: Names) -> list[dict[str, Any]]:
    """Its groups of parameters, by name, with learning rate and all else that is set for a group."""
    return [
        {**{key: value for key, value in group.items() if key != "params"},
         "params": [_name(parameter, names) for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]  # fmt: skip


def template(optimizer: torch.optim.Optimizer, names: Names, index: Metadata, path: tuple[str, ...]) -> State:
    """Room for what the checkpoint (``index``) has for this optimizer's parameters under ``path``."""
    parameters = {_name(each, names): each for group in optimizer.param_groups for each in group["params"]}
    made: State = {}
    for key, place in (index.planner_data or {}).items():
        inner = tuple(place)[len(path) :]
        if tuple(place)[: len(path)] != path or len(inner) != 2 or inner[0] not in parameters:
            continue
        name, value = inner
        parameter = parameters[name]
        kept = optimizer.state.get(parameter, {}).get(value)
        made.setdefault(name, {})[value] = _room(parameter, kept, index.state_dict_metadata[key])
    return made


def _room(parameter: torch.Tensor, kept: Any, saved: Any) -> Any:
    if not isinstance(saved, TensorStorageMetadata):
        return None  # no tensor: it is replaced by what is read
    dtype = saved.properties.dtype
    if isinstance(kept, torch.Tensor) and kept.shape == saved.size and kept.dtype == dtype:
        return kept
    if saved.size == parameter.shape and isinstance(parameter, DTensor):
        return torch.zeros_like(parameter.detach(), dtype=dtype)
    device = parameter.device if saved.size == parameter.shape and parameter.dim() else torch.device("cpu")
    return torch.empty(saved.size, dtype=dtype, device=device)


def restore(optimizer: torch.optim.Optimizer, names: Names, state: State, groups: list[dict[str, Any]]) -> None:
    """Give the optimizer what was read.

    Raises:
        CheckpointMismatch: its groups hold other parameters than the saved ones.
    """
    numbers: dict[str, int] = {}
    layout = []
    for number, group in enumerate(optimizer.param_groups):
        own = [_name(parameter, names) for parameter in group["params"]]
        saved = next((each for each in groups if set(own) & set(each["params"])), None)
        if saved is None or set(own) != set(saved["params"]):
            raise CheckpointMismatch("the optimizer", why=f"its group {number} holds other parameters than were saved")
        first = len(numbers)
        numbers.update({name: first + at for at, name in enumerate(own)})
        layout.append({**saved, "params": [numbers[name] for name in own]})
    by_number = {numbers[name]: values for name, values in state.items()}
    optimizer.load_state_dict({"state": by_number, "param_groups": layout})
    _as_saved(optimizer, names, state)


def _as_saved(optimizer: torch.optim.Optimizer, names: Names, state: State) -> None:
    """load_state_dict turns values into the parameter's dtype; what was saved in another one gets it back."""
    for parameter, values in optimizer.state.items():
        for key, value in state.get(_name(parameter, names), {}).items():
            now = values.get(key)
            if isinstance(value, torch.Tensor) and isinstance(now, torch.Tensor) and now.dtype != value.dtype:
                values[key] = value.to(now.device)


def _name(parameter: torch.Tensor, names: Names) -> str:
    found = names.get(id(parameter))
    if found is None:
        raise CheckpointMismatch(
            "the optimizer",
            why="it holds a parameter that is in no model given to the checkpoint",
            next_step="give the checkpoint that model too, as model={name: module, ...}",
        )
    return found
