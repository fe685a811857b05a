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
    holdfast.probe_speed(step, most)      how fast each rank is, and how much fits; .allot(batch) deals a batch out
    holdfast.HeterogeneousSampler(...)    shares of each batch for ranks of unequal speed, each sample once
    holdfast.Rebalancer(sampler, speeds)  other shares where a rank slows down
    holdfast.loss_weight(tokens)          what this rank's loss counts where ranks have unequal numbers of tokens
    holdfast.agree_precision()            the precision that every rank has in hardware
    holdfast.read_heterogeneous(path)     groups of ranks with batch, accumulation, precision, stages, from YAML
    holdfast.reduce_by_groups(model)      DDP's gradients summed inside of groups of ranks, and then between them
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

#: Public name -> the module that holds it, or which it is. Rooms to come are added here, one line each.
_LAZY = {
    "Checkpoint": "holdfast.runtime.checkpoint.saver",
    "HeterogeneousSampler": "holdfast.runtime.hetero.sampler",
    "Meeting": "holdfast.plan.batches",
    "Rebalancer": "holdfast.runtime.hetero.rebalance",
    "agree_precision": "holdfast.runtime.hetero.precision",
    "comm": "holdfast.runtime.comm",
    "evaluate": "holdfast.runtime.evaluate",
    "Hooks": "holdfast.runtime.loop.hooks",
    "loop": "holdfast.runtime.loop.looping",
    "loss_weight": "holdfast.runtime.hetero.weights",
    "in_place": "holdfast.runtime.surviving",
    "phase": "holdfast.runtime.recorder",
    "probe_speed": "holdfast.runtime.hetero.speeds",
    "read_heterogeneous": "holdfast.runtime.hetero.file",
    "reduce_by_groups": "holdfast.runtime.hetero.groups",
    "sinks": "holdfast.runtime.sinks",
    "step": "holdfast.runtime.recorder",
}

__all__ = [
    "Checkpoint",
    "HeterogeneousSampler",
    "Hooks",
    "Meeting",
    "Rebalancer",
    "__version__",
    "agree_precision",
    "comm",
    "evaluate",
    "in_place",
    "loop",
    "loss_weight",
    "phase",
    "probe_speed",
    "read_heterogeneous",
    "reduce_by_groups",
    "sinks",
    "step",
]


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
