"""The states of a rank's random generators: Python's, numpy's, torch's, and those of its GPUs."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def taken() -> dict[str, Any]:
    """All states, as plain values and tensors that ``torch.load(weights_only=True)`` takes."""
    version, words, spare = random.getstate()
    states: dict[str, Any] = {
        "python": [version, list(words), spare],
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state()] if torch.cuda.is_available() and torch.cuda.is_initialized() else [],
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_spare, gauss = numpy.random.get_state()  # the seeds that scripts set are global
        states["numpy"] = [name, torch.from_numpy(keys.astype("int64")), int(position), int(has_spare), float(gauss)]
    return states


def restore(states: dict[str, Any]) -> None:
    """Set all states that were taken; none were where the checkpoint was converted from one of another framework."""
    if not states:
        return
    version, words, spare = states["python"]
    random.setstate((version, tuple(words), spare))
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"][0])
    if "numpy" in states:
        import numpy as np  # noqa: PLC0415 - where it was in use when the states were taken

        name, keys, position, has_spare, gauss = states["numpy"]
        global_state = (name, keys.numpy().astype("uint32"), position, has_spare, gauss)
        np.random.set_state(global_state)  # noqa: NPY002 - the one that scripts seed


def spread(rank: int) -> None:
    """Give a rank that has no state of its own (there are more ranks than before) another one than rank 0's.

    The state that rank 0 saved was restored on it; a seed drawn from that, and the rank, make its own.
    """
    seed = int(torch.randint(0, 2**62, (1,)).item()) ^ (rank * 0x9E3779B97F4A7C15 & (2**62 - 1))
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)
