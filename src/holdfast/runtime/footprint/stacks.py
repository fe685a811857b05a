"""Equal layers that stand one after the other in a module, and how to leave some of them out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import nn

from holdfast.plan.described import Stack


def form(module: nn.Module) -> tuple[Any, ...]:
    """What is equal in equal layers: class, and name, shape and type of each weight, and whether it is trained."""
    weights = tuple((name, tuple(w.shape), w.dtype, w.requires_grad) for name, w in module.named_parameters())
    return type(module), weights


def lists(module: nn.Module) -> Iterator[tuple[str, nn.ModuleList | nn.Sequential, int]]:
    """Each list with at least two equal layers that have weights, outermost ones only, with how many are equal.

    Layers that differ from most of a list (every fourth has experts) are not equal to them: the list is given with the
    length of a whole one where all are equal, and is left out otherwise.
    """
    taken: list[str] = []
    for path, each in module.named_modules():
        if not isinstance(each, (nn.ModuleList, nn.Sequential)) or any(path.startswith(f"{one}.") for one in taken):
            continue
        forms = Counter(form(layer) for layer in each)
        # One layer that is gone through several times is one layer.
        if len(each) > 1 and len(forms) == 1 and next(iter(forms))[1] and len(set(each)) == len(each):
            taken.append(path)
            yield path, each, len(each)


def stacks(module: nn.Module) -> tuple[Stack, ...]:
    """All of them, the one with most weights first."""
    found = []
    for path, layers, count in lists(module):
        first = layers[0]
        params = sum(w.numel() for w in first.parameters())
        trained = sum(w.numel() for w in first.parameters() if w.requires_grad)
        found.append(Stack(path, type(first).__name__, count, params, trained))
    return tuple(sorted(found, key=lambda stack: -stack.count * stack.params))


def layers_at(module: nn.Module, path: str) -> nn.ModuleList | nn.Sequential:
    """The list at ``path``."""
    found = module.get_submodule(path)
    if not isinstance(found, (nn.ModuleList, nn.Sequential)):
        raise TypeError(path)  # it was found by `lists`
    return found


def cut(module: nn.Module, path: str, depth: int) -> None:
    """Leave out all but the first ``depth`` layers of the list at ``path``."""
    layers = layers_at(module, path)
    while len(layers) > depth:
        del layers[-1]
