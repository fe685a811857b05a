"""torch's private names that a run on fake tensors needs, and what is put right in them, in one place.

They were read and tried in torch 2.13. The trackers are ``torch.distributed._tools.mem_tracker`` and
``fsdp2_mem_tracker`` (since 2.6; ``FSDPMemTracker`` was at ``torch.distributed._tools.fsdp2_mem_tracker`` from the
start), by S. Purandare. Where a name is missing, :func:`interfaces` says so in a sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import torch

from holdfast.errors import BadValue

TESTED = ("2.13",)
_STAY = "the closed formulas need none of it"


class Interfaces(NamedTuple):
    """What was found under torch's private names."""

    sharded: Any
    whole: Any
    fake_store: Any
    fake_mode: Any
    propagator: Any
    wrap_checkpoint: Any


_NAMES = (
    ("torch.distributed._tools.fsdp2_mem_tracker", "FSDPMemTracker"),
    ("torch.distributed._tools.mem_tracker", "MemTracker"),
    ("torch.testing._internal.distributed.fake_pg", "FakeStore"),
    ("torch._subclasses.fake_tensor", "FakeTensorMode"),
    ("torch.distributed.tensor._sharding_prop", "ShardingPropagator"),
    ("torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "checkpoint_wrapper"),
)
#: Methods and fields that are overridden or read.
_INSIDE = (
    ("sharded", ("__torch_dispatch__", "_update_peak_stats", "reset_mod_stats", "track_inputs")),
    ("whole", ("__torch_dispatch__", "_update_peak_stats", "reset_mod_stats", "track_external")),
    ("propagator", ("_propagate_tensor_meta_non_cached",)),
)


def interfaces() -> Interfaces:
    """All of them.

    Raises:
        BadValue: this torch lacks one.
    """
    found = []
    for place, name in _NAMES:
        try:
            found.append(getattr(import_module(place), name))
        except (ImportError, AttributeError):
            raise BadValue("a run on fake tensors", why=_lacks(f"{place}.{name}"), next_step=_STAY) from None
    all_of_them = Interfaces(*found)
    for field, names in _INSIDE:
        for name in names:
            if not hasattr(getattr(all_of_them, field), name):
                raise BadValue("a run on fake tensors", why=_lacks(f"{field}.{name}"), next_step=_STAY)
    return all_of_them


def _lacks(name: str) -> str:
    return f"torch {torch.__version__} has no {name} (tried with {', '.join(TESTED)})"


class Peaks:
    """Bytes by kind at the highest point of each moment; ``moment`` is set by whoever runs the step."""

    def __init__(self) -> None:
        self.moment = ""
        self.paused = 0
        self.highest: dict[str, Counter[str]] = {}
        self._totals: dict[str, int] = {}

    def look(self, devices: dict[Any, dict[Any, int]]) -> None:
        """Keep what is there where there is more than before."""
        total = sum(kinds.get("Total", 0) for kinds in devices.values())
        if total > self._totals.get(self.moment, -1):
            self._totals[self.moment] = total
            self.highest[self.moment] = kinds_of(devices)


def kinds_of(devices: dict[Any, dict[Any, int]]) -> Counter[str]:
    """Bytes by kind, as the tracker's own enumeration names them, on all devices together."""
    found: Counter[str] = Counter()
    for kinds in devices.values():
        for kind, size in kinds.items():
            found[str(getattr(kind, "name", kind))] += size
    return found


def tracker(names: Interfaces, peaks: Peaks, *, sharded: bool) -> Any:
    """A class of tracker that keeps peaks by moment, and looks at nothing while the run is ``paused``.

    It also leaves out the snapshots by module, which at full depth took most of the time.
    """
    base = names.sharded if sharded else names.whole

    class Tracker(base):  # type: ignore[misc, valid-type]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if peaks.paused:
                return func(*args, **(kwargs or {}))
            return super().__torch_dispatch__(func, types, args, kwargs)

        def _update_peak_stats(self, _: Any) -> None:
            peaks.look(self._curr_mem_snap)

    return Tracker


class _NoHook:
    def remove(self) -> None:
        """There is none."""


def leave_frozen(watch: Any, module: torch.nn.Module) -> None:
    """In torch 2.13 ``MemTracker`` hooks the gradients of all weights, and fails at those that have none."""
    for weight in module.parameters():
        if not weight.requires_grad:
            watch._param_to_grad_hook_handles[weight] = (_NoHook(), _NoHook())  # noqa: SLF001


@contextmanager
def without_propagation(names: Interfaces, peaks: Peaks) -> Iterator[None]:
    """DTensor finds out shapes of whole tensors with fake ones of its own, which no GPU ever holds.

    In torch 2.13 it does that in the fake mode that is active, and the tracker takes them for tensors of the run
    (``ShardingPropagator._propagate_tensor_meta_non_cached``): of an optimizer's first step, whole weights.
    """
    before = names.propagator._propagate_tensor_meta_non_cached  # noqa: SLF001

    def quietly(self: Any, *args: Any, **more: Any) -> Any:
        peaks.paused += 1
        try:
            return before(self, *args, **more)
        finally:
            peaks.paused -= 1

    names.propagator._propagate_tensor_meta_non_cached = quietly  # noqa: SLF001
    try:
        yield
    finally:
        names.propagator._propagate_tensor_meta_non_cached = before  # noqa: SLF001
