"""Find equal consecutive layers of a module, and truncate them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import nn

from holdfast.plan.model_counts import LayerStack


def layer_signature(module: nn.Module) -> tuple[Any, ...]:
    """Return what equal layers share: class, and name, shape, dtype and training of each weight."""
    weights = tuple(
        (name, tuple(w.shape), w.dtype, w.requires_grad) for name, w in module.named_parameters()
    )
    return type(module), weights


def iter_layer_lists(module: nn.Module) -> Iterator[tuple[str, nn.ModuleList | nn.Sequential, int]]:
    """Yield each outermost list with at least two equal layers with weights, and their number.

    A list whose layers are not all equal (every fourth has experts) is skipped.
    """
    found: list[str] = []
    for path, submodule in module.named_modules():
        if not isinstance(submodule, (nn.ModuleList, nn.Sequential)) or any(
            path.startswith(f"{parent}.") for parent in found
        ):
            continue
        signatures = Counter(layer_signature(layer) for layer in submodule)
        # A layer that is called several times counts once.
        if (
            len(submodule) > 1
            and len(signatures) == 1
            and next(iter(signatures))[1]
            and len(set(submodule)) == len(submodule)
        ):
            found.append(path)
            yield path, submodule, len(submodule)


def find_layer_stacks(module: nn.Module) -> tuple[LayerStack, ...]:
    """Return all stacks, the largest first."""
    stacks = []
    for path, layers, count in iter_layer_lists(module):
        first = layers[0]
        params = sum(w.numel() for w in first.parameters())
        trained = sum(w.numel() for w in first.parameters() if w.requires_grad)
        stacks.append(LayerStack(path, type(first).__name__, count, params, trained))
    return tuple(sorted(stacks, key=lambda stack: -stack.count * stack.params))


def get_layers(module: nn.Module, path: str) -> nn.ModuleList | nn.Sequential:
    """Return the list at ``path``."""
    layers = module.get_submodule(path)
    if not isinstance(layers, (nn.ModuleList, nn.Sequential)):
        raise TypeError(path)  # iter_layer_lists yielded it
    return layers


def truncate_layers(module: nn.Module, path: str, depth: int) -> None:
    """Delete all but the first ``depth`` layers of the list at ``path``."""
    layers = get_layers(module, path)
    while len(layers) > depth:
        del layers[-1]
