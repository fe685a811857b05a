"""torch's private names that a run on fake tensors needs, and their workarounds, in one place.

They were read and tested in torch 2.13. The trackers are ``torch.distributed._tools.mem_tracker``
and ``fsdp2_mem_tracker`` (since 2.6), by S. Purandare. If a name is missing,
:func:`load_torch_internals` raises an error that names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import torch

from holdfast.core.errors import InvalidValue

TESTED_VERSIONS = ("2.13",)
_USE_FORMULAS = "use the closed formulas, which do not need it"


class TorchInternals(NamedTuple):
    """torch's private classes and functions."""

    fsdp_tracker: Any
    memory_tracker: Any
    fake_store: Any
    fake_mode: Any
    sharding_propagator: Any
    wrap_checkpoint: Any


_INTERNALS = (
    ("torch.distributed._tools.fsdp2_mem_tracker", "FSDPMemTracker"),
    ("torch.distributed._tools.mem_tracker", "MemTracker"),
    ("torch.testing._internal.distributed.fake_pg", "FakeStore"),
    ("torch._subclasses.fake_tensor", "FakeTensorMode"),
    ("torch.distributed.tensor._sharding_prop", "ShardingPropagator"),
    ("torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "checkpoint_wrapper"),
)
#: Members that are overridden or read.
_MEMBERS = (
    (
        "fsdp_tracker",
        ("__torch_dispatch__", "_update_peak_stats", "reset_mod_stats", "track_inputs"),
    ),
    (
        "memory_tracker",
        ("__torch_dispatch__", "_update_peak_stats", "reset_mod_stats", "track_external"),
    ),
    ("sharding_propagator", ("_propagate_tensor_meta_non_cached",)),
)


def load_torch_internals() -> TorchInternals:
    """Return all private names.

    Raises:
        InvalidValue: this torch lacks one.
    """
    objects = []
    for module_name, name in _INTERNALS:
        try:
            objects.append(getattr(import_module(module_name), name))
        except (ImportError, AttributeError):
            raise InvalidValue(
                "a run on fake tensors",
                why=_describe_missing(f"{module_name}.{name}"),
                next_step=_USE_FORMULAS,
            ) from None
    internals = TorchInternals(*objects)
    for field, names in _MEMBERS:
        for name in names:
            if not hasattr(getattr(internals, field), name):
                raise InvalidValue(
                    "a run on fake tensors",
                    why=_describe_missing(f"{field}.{name}"),
                    next_step=_USE_FORMULAS,
                )
    return internals


def _describe_missing(name: str) -> str:
    return f"torch {torch.__version__} has no {name} (tested with {', '.join(TESTED_VERSIONS)})"


class PeakRecorder:
    """Bytes by kind at the peak of each moment; the code that runs the step sets ``moment``."""

    def __init__(self) -> None:
        self.moment = ""
        self.paused = 0
        self.highest: dict[str, Counter[str]] = {}
        self._totals: dict[str, int] = {}

    def record(self, devices: dict[Any, dict[Any, int]]) -> None:
        """Record the current bytes if they exceed the moment's peak."""
        total = sum(kinds.get("Total", 0) for kinds in devices.values())
        if total > self._totals.get(self.moment, -1):
            self._totals[self.moment] = total
            self.highest[self.moment] = bytes_by_kind(devices)


def bytes_by_kind(devices: dict[Any, dict[Any, int]]) -> Counter[str]:
    """Return bytes by the tracker's kinds, summed over all devices."""
    totals: Counter[str] = Counter()
    for kinds in devices.values():
        for kind, size in kinds.items():
            totals[str(getattr(kind, "name", kind))] += size
    return totals


def make_tracker(internals: TorchInternals, peaks: PeakRecorder, *, sharded: bool) -> Any:
    """Return a tracker class that records peaks by moment, and nothing while ``paused``.

    It skips the snapshots by module, which took most of the time at full depth.
    """
    base_class = internals.fsdp_tracker if sharded else internals.memory_tracker

    class Tracker(base_class):  # type: ignore[misc, valid-type]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if peaks.paused:
                return func(*args, **(kwargs or {}))
            return super().__torch_dispatch__(func, types, args, kwargs)

        def _update_peak_stats(self, _: Any) -> None:
            peaks.record(self._curr_mem_snap)

    return Tracker


class _NoHook:
    def remove(self) -> None:
        """Do nothing."""


def skip_frozen_parameters(tracker: Any, module: torch.nn.Module) -> None:
    """Work around ``MemTracker`` of torch 2.13, which fails on weights without gradients."""
    for weight in module.parameters():
        if not weight.requires_grad:
            tracker._param_to_grad_hook_handles[weight] = (_NoHook(), _NoHook())  # noqa: SLF001


@contextmanager
def ignore_shape_propagation(internals: TorchInternals, peaks: PeakRecorder) -> Iterator[None]:
    """Pause recording while DTensor propagates shapes on unsharded fake tensors.

    In torch 2.13 it does so in the active fake mode, and the tracker counts them as tensors of the
    run (``ShardingPropagator._propagate_tensor_meta_non_cached``): for an optimizer's first step,
    unsharded weights.
    """
    original = internals.sharding_propagator._propagate_tensor_meta_non_cached  # noqa: SLF001

    def paused_propagation(self: Any, *args: Any, **options: Any) -> Any:
        peaks.paused += 1
        try:
            return original(self, *args, **options)
        finally:
            peaks.paused -= 1

    internals.sharding_propagator._propagate_tensor_meta_non_cached = paused_propagation  # noqa: SLF001
    try:
        yield
    finally:
        internals.sharding_propagator._propagate_tensor_meta_non_cached = original  # noqa: SLF001
