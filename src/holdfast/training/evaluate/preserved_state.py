"""Restore modes and random generators, so that evaluation does not affect training."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def preserve_state(model: object, *, rng: bool = True) -> Iterator[None]:
    """Run the block in evaluation mode without gradients; restore each module's mode afterwards.

    ``rng``: also restore the generators of torch (the CPU's, and the current device's if CUDA is in
    use), Python and numpy. They are global: False if training runs concurrently.
    """
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    modes = [module.training for module in modules]
    rng_states = _rng_states() if rng else []
    try:
        if isinstance(model, torch.nn.Module):
            model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode  # train() would also set submodules
        for restore, state in rng_states:
            restore(state)


def _rng_states() -> list[tuple[Callable[[Any], object], Any]]:
    states: list[tuple[Callable[[Any], object], Any]] = [
        (torch.set_rng_state, torch.get_rng_state()),
        (random.setstate, random.getstate()),
    ]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states.append((torch.cuda.set_rng_state, torch.cuda.get_rng_state()))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states.append((numpy.random.set_state, numpy.random.get_state()))
    return states
