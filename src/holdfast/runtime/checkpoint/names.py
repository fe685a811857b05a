"""The names of parameters, whatever they are wrapped in: DDP, torch.compile, FSDP2 leave no trace in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

#: What torch.compile puts into names.
_COMPILED = "_orig_mod."


def plain(module: torch.nn.Module) -> torch.nn.Module:
    """The module inside of DDP and torch.compile."""
    while isinstance(module, DistributedDataParallel) or hasattr(module, "_orig_mod"):
        module = module.module if isinstance(module, DistributedDataParallel) else module._orig_mod  # type: ignore[assignment]  # noqa: SLF001
    return module


def plain_name(name: str) -> str:
    """The name without what wrappers put into it."""
    return name.replace(_COMPILED, "")


def state_of_module(module: torch.nn.Module) -> dict[str, Any]:
    """The module's state by plain name; tensors are those of the module itself, not copies."""
    return {plain_name(name): value for name, value in plain(module).state_dict().items()}


def parameter_names(modules: Mapping[str, torch.nn.Module]) -> dict[int, str]:
    """The plain name of each parameter, by the parameter's id; names of several modules begin with the module's."""
    found = {}
    for prefix, module in modules.items():
        for name, parameter in plain(module).named_parameters():
            found[id(parameter)] = f"{prefix}.{plain_name(name)}" if prefix else plain_name(name)
    return found
