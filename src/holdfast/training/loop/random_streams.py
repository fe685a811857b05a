"""Random numbers of the input pipeline, separate from those of the model.

A loader draws from the global generator when it starts (worker seeds, shuffling). After a resume it
starts in mid-epoch, where an uninterrupted run draws nothing, so every later dropout would differ.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class RandomStream:
    """Generators of torch (CPU), Python and numpy that start at a seed and keep their state."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._states: tuple[Any, ...] | None = None

    @contextmanager
    def use(self) -> Iterator[None]:
        """Make the global generators draw from this stream; restore their state afterwards."""
        outer = _get_states()
        if self._states is None:
            _seed_all(self._seed)
        else:
            _set_states(self._states)
        try:
            yield
        finally:
            self._states = _get_states()
            _set_states(outer)


def epoch_seed(seed: int, epoch: int) -> int:
    """Return the seed of an epoch's stream; well mixed for adjacent seeds and epochs."""
    mixed = (seed * 0x9E3779B97F4A7C15 + epoch * 0xBF58476D1CE4E5B9) & ((1 << 64) - 1)
    mixed ^= mixed >> 31
    return (mixed * 0x94D049BB133111EB) & ((1 << 63) - 1)


def _numpy_random() -> Any:
    """Return numpy's random module if it is imported; otherwise nothing draws from it."""
    return sys.modules.get("numpy.random")


def _get_states() -> tuple[Any, ...]:
    numpy = _numpy_random()
    return torch.default_generator.get_state(), random.getstate(), numpy and numpy.get_state()


def _set_states(states: tuple[Any, ...]) -> None:
    torch.default_generator.set_state(states[0])
    random.setstate(states[1])
    if states[2] is not None and (numpy := _numpy_random()):
        numpy.set_state(states[2])


def _seed_all(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if numpy := _numpy_random():
        numpy.seed(seed & 0xFFFFFFFF)
