"""Capture and restore the random states of a rank: Python's, numpy's, torch's and its GPU's."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def capture() -> dict[str, Any]:
    """Return all states as plain values and tensors that ``weights_only=True`` can load."""
    version, words, spare = random.getstate()
    states: dict[str, Any] = {
        "python": [version, list(words), spare],
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state()]
        if torch.cuda.is_available() and torch.cuda.is_initialized()
        else [],
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        # Scripts seed the global state.
        name, keys, position, has_spare, gauss = numpy.random.get_state()
        states["numpy"] = [
            name,
            torch.from_numpy(keys.astype("int64")),
            int(position),
            int(has_spare),
            float(gauss),
        ]
    return states


def restore(states: dict[str, Any]) -> None:
    """Set all captured states; empty if the checkpoint was converted from another framework."""
    if not states:
        return
    version, words, spare = states["python"]
    random.setstate((version, tuple(words), spare))
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"][0])
    if "numpy" in states:
        import numpy as np  # noqa: PLC0415 - numpy was in use at capture

        name, keys, position, has_spare, gauss = states["numpy"]
        global_state = (name, keys.numpy().astype("uint32"), position, has_spare, gauss)
        np.random.set_state(global_state)  # noqa: NPY002 - scripts seed the global state


def reseed(rank: int) -> None:
    """Give a rank without a saved state (the job has grown) a state that differs from rank 0's.

    The seed is drawn from rank 0's restored state, and combined with the rank.
    """
    seed = int(torch.randint(0, 2**62, (1,)).item()) ^ (rank * 0x9E3779B97F4A7C15 & (2**62 - 1))
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)
