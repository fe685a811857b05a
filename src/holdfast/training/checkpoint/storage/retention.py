"""Which checkpoints are retained: the last, every n-th step, the best.

The newest valid checkpoint is never deleted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec

from holdfast.core import checkpoint_manifest
from holdfast.core.checkpoint_manifest import Manifest
from holdfast.core.errors import CheckpointUnreadable, InvalidValue
from holdfast.training.checkpoint.storage.backends import FolderBackend, StorageBackend


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Which checkpoints to retain; without options, all of them.

    ``last``: number of highest steps; ``every``: steps divisible by this number; ``best``: name of
    a value passed to ``save``, and ``"min"`` or ``"max"``.
    """

    last: int | None = None
    every: int | None = None
    best: tuple[str, Literal["min", "max"]] | None = None

    def check(self) -> None:
        """Raise InvalidValue if an option is invalid."""
        for name, number in (("keep_last", self.last), ("keep_every", self.every)):
            if number is not None and not (type(number) is int and number > 0):
                raise InvalidValue(name, why=f"{number!r} is not a positive integer")
        if self.best is not None and tuple(self.best[1:]) not in (("min",), ("max",)):
            raise InvalidValue(
                "best",
                why=f"{self.best!r} is not a pair",
                next_step='write it as best=("loss", "min")',
            )

    def steps_to_keep(self, values_by_step: Mapping[int, Mapping[str, Any]]) -> frozenset[int]:
        """Return the steps to retain, from the values of each valid checkpoint."""
        steps = sorted(values_by_step, reverse=True)
        if self.last is None and self.every is None and self.best is None:
            return frozenset(steps)
        retained = set(steps[: self.last or 1])
        if self.every is not None:
            retained |= {step for step in steps if step % self.every == 0}
        if self.best is not None:
            retained |= self._best(values_by_step)
        return frozenset(retained)

    def _best(self, values_by_step: Mapping[int, Mapping[str, Any]]) -> set[int]:
        name, mode = self.best or ("", "min")
        known = {
            step: values[name]
            for step, values in values_by_step.items()
            if _is_number(values.get(name))
        }
        if not known:
            return set()
        best_value = (min if mode == "min" else max)(known.values())
        return {max(step for step, value in known.items() if value == best_value)}


def prune(
    backend: StorageBackend, policy: RetentionPolicy, busy: Collection[int] = ()
) -> list[int]:
    """Delete checkpoints that are neither retained nor ``busy``; return their steps.

    ``busy`` steps are being copied or read. Checkpoints without a valid manifest or with missing
    files are neither counted nor deleted, so that they can be inspected.

    Raises:
        StorageUnusable: the backend cannot be read or written.
    """
    values_by_step = {
        step: known.values
        for step in backend.steps()
        if (known := _complete_manifest(backend, step)) is not None
    }
    deleted = sorted(set(values_by_step) - policy.steps_to_keep(values_by_step) - set(busy))
    for step in deleted:
        backend.remove(step)
    if isinstance(backend, FolderBackend):
        backend.sweep()
    return deleted


def _complete_manifest(backend: StorageBackend, step: int) -> Manifest | None:
    try:
        manifest = backend.manifest(step)
    except CheckpointUnreadable:
        return None
    if isinstance(backend, FolderBackend) and any(
        checkpoint_manifest.find_damage(backend.folder(step), manifest, contents=False)
    ):
        return None
    return manifest


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
