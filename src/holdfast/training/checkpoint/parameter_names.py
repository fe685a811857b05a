"""Parameter names without the prefixes of DDP, torch.compile and FSDP2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

#: The prefix that torch.compile adds to names.
_COMPILE_PREFIX = "_orig_mod."


def unwrap(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside DDP and torch.compile."""
    while isinstance(module, DistributedDataParallel) or hasattr(module, "_orig_mod"):
        module = module.module if isinstance(module, DistributedDataParallel) else module._orig_mod  # type: ignore[assignment]  # noqa: SLF001
    return module


def unwrapped_name(name: str) -> str:
    """Return the name without wrapper prefixes."""
    return name.replace(_COMPILE_PREFIX, "")


def state_of_module(module: torch.nn.Module) -> dict[str, Any]:
    """Return the module's state by unwrapped name; tensors are not copied."""
    return {unwrapped_name(name): value for name, value in unwrap(module).state_dict().items()}


def parameter_names(modules: Mapping[str, torch.nn.Module]) -> dict[int, str]:
    """Map each parameter's id to its unwrapped name; with several modules, prefixed by module."""
    names = {}
    for prefix, module in modules.items():
        for name, parameter in unwrap(module).named_parameters():
            names[id(parameter)] = (
                f"{prefix}.{unwrapped_name(name)}" if prefix else unwrapped_name(name)
            )
    return names
