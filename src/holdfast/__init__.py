"""holdfast keeps distributed PyTorch training running, and reports why it stops.

Importing this package is cheap and imports no torch. The names below are loaded from
``holdfast.training`` on first use::

    holdfast.in_place(train)              call train; call it again after a dead rank was replaced
    holdfast.step(n)                      this rank begins step n
    holdfast.phase(name, budget="10m")    with-block: may take this long without counting as a hang
    holdfast.Checkpoint(folder, ...)      asynchronous, checksummed checkpoints for any world size
    holdfast.loop(loader, checkpoint)     iterate a loader with automatic resume and checkpoints
    holdfast.Hooks(checkpoint)            the same for a custom training loop
    holdfast.loader_settings()            cache, prefetching, workers as user or preset chose
    holdfast.comm                         collectives with timeouts that name the missing ranks
    holdfast.staggered(name, at_once=1)   with-block around files: a few ranks at a time
    holdfast.in_background(name, function) work with files in a thread, with a joint end
    holdfast.sinks                        metric logging whose failures do not affect training
    holdfast.probe_speed(step, most)      speed, maximum batch per rank; .allot(batch) divides one
    holdfast.HeterogeneousSampler(...)    batch shares for ranks of unequal speed, each sample once
    holdfast.Rebalancer(sampler, speeds)  new shares when a rank slows down
    holdfast.loss_weight(tokens)          weight of this rank's loss for unequal numbers of tokens
    holdfast.agree_precision()            the precision that every rank supports in hardware
    holdfast.read_heterogeneous(path)     read groups of ranks with batch and precision from YAML
    holdfast.HeterogeneousPipeline(...)   the pipeline stages of that file, with unequal shares
    holdfast.reduce_by_groups(model)      reduce gradients within groups of ranks, then between
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from typing import Any

from holdfast.core.moved_modules import MovedModuleFinder

__version__ = "0.1.0"

#: Public name -> its module (or the module itself, for _MODULES).
_LAZY = {
    "Checkpoint": "holdfast.training.checkpoint.checkpoint",
    "HeterogeneousPipeline": "holdfast.training.heterogeneous.pipeline",
    "HeterogeneousSampler": "holdfast.training.heterogeneous.sampler",
    "SyncPoint": "holdfast.training.heterogeneous.batch_allocation",
    "Rebalancer": "holdfast.training.heterogeneous.rebalancer",
    "agree_precision": "holdfast.training.heterogeneous.precision",
    "comm": "holdfast.training.collectives",
    "evaluate": "holdfast.training.evaluate",
    "Hooks": "holdfast.training.loop.hooks",
    "loader_settings": "holdfast.training.loop.loader_settings",
    "loop": "holdfast.training.loop.iterator",
    "loss_weight": "holdfast.training.heterogeneous.loss_weights",
    "in_background": "holdfast.training.collectives.file_turns",
    "in_place": "holdfast.training.in_process_restart",
    "phase": "holdfast.recorder",
    "probe_speed": "holdfast.training.heterogeneous.speed_probe",
    "read_heterogeneous": "holdfast.training.heterogeneous.config_file",
    "reduce_by_groups": "holdfast.training.heterogeneous.grouped_reduction",
    "sinks": "holdfast.training.sinks",
    "staggered": "holdfast.training.collectives.file_turns",
    "step": "holdfast.recorder",
}

#: Former public name -> current one. Kept for one release.
_RENAMED = {"Meeting": "SyncPoint"}
#: Public names that are modules themselves.
_MODULES = frozenset({"comm", "evaluate", "sinks"})

__all__ = [
    "Checkpoint",
    "HeterogeneousPipeline",
    "HeterogeneousSampler",
    "Hooks",
    "Rebalancer",
    "SyncPoint",
    "__version__",
    "agree_precision",
    "comm",
    "evaluate",
    "in_background",
    "in_place",
    "loader_settings",
    "loop",
    "loss_weight",
    "phase",
    "probe_speed",
    "read_heterogeneous",
    "reduce_by_groups",
    "sinks",
    "staggered",
    "step",
]


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name in _RENAMED:
        new = _RENAMED[name]
        warnings.warn(f"holdfast.{name} is now holdfast.{new}", DeprecationWarning, stacklevel=2)
        return __getattr__(new)
    if name not in _LAZY:
        message = (
            f"module 'holdfast' has no attribute {name!r}; it offers {', '.join(sorted(_LAZY))}"
        )
        raise AttributeError(message)
    module = import_module(_LAZY[name])
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the lazily loaded names too."""
    return sorted({*globals(), *_LAZY})


sys.meta_path.append(MovedModuleFinder())
