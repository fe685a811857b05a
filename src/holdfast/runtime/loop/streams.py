"""Random numbers of the input pipeline, kept apart from those of the model.

A loader draws from the global generator when it begins (the seed of its workers, a shuffle). After a resume it begins
in the middle of an epoch, where the undisturbed run drew nothing, and every dropout behind it would differ.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Stream:
    """Generators of torch (CPU), Python and numpy, which begin at a seed and go on where they were left."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._states: tuple[Any, ...] | None = None

    @contextmanager
    def use(self) -> Iterator[None]:
        """With-block: who draws from the global generators draws from this stream, and leaves the others untouched."""
        outer = _states()
        if self._states is None:
            _seed(self._seed)
        else:
            _set(self._states)
        try:
            yield
        finally:
            self._states = _states()
            _set(outer)


def seed_of(seed: int, epoch: int) -> int:
    """The seed of an epoch's stream: far apart for seeds and epochs that are near each other."""
    mixed = (seed * 0x9E3779B97F4A7C15 + epoch * 0xBF58476D1CE4E5B9) & ((1 << 64) - 1)
    mixed ^= mixed >> 31
    return (mixed * 0x94D049BB133111EB) & ((1 << 63) - 1)


def _numpy() -> Any:
    """Numpy's random module where something has imported it; else nobody draws from it."""
    return sys.modules.get("numpy.random")


def _states() -> tuple[Any, ...]:
    numpy = _numpy()
    return torch.default_generator.get_state(), random.getstate(), numpy and numpy.get_state()


def _set(states: tuple[Any, ...]) -> None:
    torch.default_generator.set_state(states[0])
    random.setstate(states[1])
    if states[2] is not None and (numpy := _numpy()):
        numpy.set_state(states[2])


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if numpy := _numpy():
        numpy.seed(seed & 0xFFFFFFFF)
