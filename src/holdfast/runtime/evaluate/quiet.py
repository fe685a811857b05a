"""Leaves a model and the sources of chance as they were found: training is the same with and without evaluation."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def undisturbed(model: object, *, chance: bool = True) -> Iterator[None]:
    """Evaluation mode and no gradients inside; afterwards each module is in the mode in which it was.

    ``chance``: the generators of torch (the CPU's, and the current device's where CUDA is in use), of Python and of
    numpy go on afterwards from where they were. They belong to the process: False where training goes on meanwhile.
    """
    modes = {module: module.training for module in model.modules()} if isinstance(model, torch.nn.Module) else {}
    restore = _remember() if chance else []
    try:
        if isinstance(model, torch.nn.Module):
            model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode  # train() would set those below it too
        for put_back, state in restore:
            put_back(state)


def _remember() -> list[tuple[Callable[[Any], object], Any]]:
    found: list[tuple[Callable[[Any], object], Any]] = [
        (torch.set_rng_state, torch.get_rng_state()), (random.setstate, random.getstate()),
    ]  # fmt: skip
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found.append((torch.cuda.set_rng_state, torch.cuda.get_rng_state()))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found.append((numpy.random.set_state, numpy.random.get_state()))
    return found
