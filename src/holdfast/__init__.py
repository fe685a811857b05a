"""holdfast keeps distributed PyTorch training running, and says why when it stops.

Importing this package costs next to nothing and imports no torch. The names below are found in the rooms of
``holdfast.runtime`` when they are first asked for::

    holdfast.in_place(train)              call train, and again where a rank died and was replaced
    holdfast.step(n)                      this rank begins step n
    holdfast.phase(name, budget="10m")    with-block: what runs in it may take this long and is no hang meanwhile
    holdfast.Checkpoint(folder, ...)      checkpoints that are proven whole, of any world size, written beside training
    holdfast.loop(loader, checkpoint)     the batches of a job that resumes and saves by itself
    holdfast.Hooks(checkpoint)            the same for a loop of one's own
    holdfast.comm                         collectives that end, and name the ranks that did not come
    holdfast.sinks                        where metrics go, without harm to training when that fails
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

#: Public name -> the module that holds it, or which it is. Rooms to come are added here, one line each.
_LAZY = {
    "Checkpoint": "holdfast.runtime.checkpoint.saver",
    "comm": "holdfast.runtime.comm",
    "evaluate": "holdfast.runtime.evaluate",
    "Hooks": "holdfast.runtime.loop.hooks",
    "loop": "holdfast.runtime.loop.looping",
    "in_place": "holdfast.runtime.surviving",
    "phase": "holdfast.runtime.recorder",
    "sinks": "holdfast.runtime.sinks",
    "step": "holdfast.runtime.recorder",
}

__all__ = ["Checkpoint", "Hooks", "__version__", "comm", "evaluate", "in_place", "loop", "phase", "sinks", "step"]


def __getattr__(name: str) -> Any:
    """Find a public name in its room on first use."""
    if name not in _LAZY:
        message = f"module 'holdfast' has no attribute {name!r}; it offers {', '.join(sorted(_LAZY))}"
        raise AttributeError(message)
    room = import_module(_LAZY[name])
    value = room if room.__name__.endswith(f".{name}") else getattr(room, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the lazy names too."""
    return sorted({*globals(), *_LAZY})
