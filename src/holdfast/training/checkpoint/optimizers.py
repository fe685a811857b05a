"""Optimizer state by parameter name, so that it loads with any world size and parameter order.

torch's ``get_optimizer_state_dict`` runs a step with zero gradients if the optimizer has no state
yet (torch 2.4 to 2.13), which counts in Adam's bias correction. Here missing state is neither saved
nor created.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from holdfast.core.errors import CheckpointMismatch
from holdfast.training.checkpoint.torch_versions import DTensor

ParameterNames = Mapping[int, str]
#: By parameter name and value name (``exp_avg``).
OptimizerState = dict[str, dict[str, Any]]


def state_of(optimizer: torch.optim.Optimizer, names: ParameterNames) -> OptimizerState:
    """Return the optimizer's state per parameter; tensors are not copied."""
    return {
        _name_of(parameter, names): dict(values)
        for parameter, values in optimizer.state.items()
        if values
    }


def parameter_groups_of(
    optimizer: torch.optim.Optimizer, names: ParameterNames
) -> list[dict[str, Any]]:
    """Return the parameter groups by name, with learning rate and other group options."""
    return [
        {
            **{key: value for key, value in group.items() if key != "params"},
            "params": [_name_of(parameter, names) for parameter in group["params"]],
        }
        for group in optimizer.param_groups
    ]


def template(
    optimizer: torch.optim.Optimizer, names: ParameterNames, index: Metadata, path: tuple[str, ...]
) -> OptimizerState:
    """Allocate what the checkpoint (``index``) holds for this optimizer under ``path``."""
    parameters = {
        _name_of(group_entry, names): group_entry
        for group in optimizer.param_groups
        for group_entry in group["params"]
    }
    allocated: OptimizerState = {}
    for key, entry_path in (index.planner_data or {}).items():
        inner = tuple(entry_path)[len(path) :]
        if tuple(entry_path)[: len(path)] != path or len(inner) != 2 or inner[0] not in parameters:
            continue
        name, value = inner
        parameter = parameters[name]
        existing = optimizer.state.get(parameter, {}).get(value)
        allocated.setdefault(name, {})[value] = _allocate(
            parameter, existing, index.state_dict_metadata[key]
        )
    return allocated


def _allocate(parameter: torch.Tensor, existing: Any, saved: Any) -> Any:
    if not isinstance(saved, TensorStorageMetadata):
        return None  # not a tensor: replaced by the value that is read
    dtype = saved.properties.dtype
    if (
        isinstance(existing, torch.Tensor)
        and existing.shape == saved.size
        and existing.dtype == dtype
    ):
        return existing
    if saved.size == parameter.shape and isinstance(parameter, DTensor):
        return torch.zeros_like(parameter.detach(), dtype=dtype)
    device = (
        parameter.device
        if saved.size == parameter.shape and parameter.dim()
        else torch.device("cpu")
    )
    return torch.empty(saved.size, dtype=dtype, device=device)


def restore(
    optimizer: torch.optim.Optimizer,
    names: ParameterNames,
    state: OptimizerState,
    groups: list[dict[str, Any]],
) -> None:
    """Load the saved state into the optimizer.

    Raises:
        CheckpointMismatch: its groups hold other parameters than the saved ones.
    """
    numbers: dict[str, int] = {}
    layout = []
    for number, group in enumerate(optimizer.param_groups):
        own_names = [_name_of(parameter, names) for parameter in group["params"]]
        saved = next(
            (group_entry for group_entry in groups if set(own_names) & set(group_entry["params"])),
            None,
        )
        if saved is None or set(own_names) != set(saved["params"]):
            raise CheckpointMismatch(
                "the optimizer", why=f"its group {number} holds other parameters than the saved one"
            )
        first = len(numbers)
        numbers.update({name: first + at for at, name in enumerate(own_names)})
        layout.append({**saved, "params": [numbers[name] for name in own_names]})
    by_number = {numbers[name]: values for name, values in state.items()}
    optimizer.load_state_dict({"state": by_number, "param_groups": layout})
    _restore_dtypes(optimizer, names, state)


def _restore_dtypes(
    optimizer: torch.optim.Optimizer, names: ParameterNames, state: OptimizerState
) -> None:
    """Restore saved dtypes: load_state_dict casts values to the parameter's dtype."""
    for parameter, values in optimizer.state.items():
        for key, value in state.get(_name_of(parameter, names), {}).items():
            loaded = values.get(key)
            if (
                isinstance(value, torch.Tensor)
                and isinstance(loaded, torch.Tensor)
                and loaded.dtype != value.dtype
            ):
                values[key] = value.to(loaded.device)


def _name_of(parameter: torch.Tensor, names: ParameterNames) -> str:
    name = names.get(id(parameter))
    if name is None:
        raise CheckpointMismatch(
            "the optimizer",
            why="it holds a parameter of no model passed to Checkpoint",
            next_step="pass that model too: Checkpoint(model={name: module, ...})",
        )
    return name
