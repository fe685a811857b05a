"""Which checkpoints stay: the last, every so many steps, the best. The newest valid one is never removed."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec

from holdfast import manifest
from holdfast.errors import BadValue, CheckpointUnreadable
from holdfast.manifest import Manifest
from holdfast.runtime.checkpoint.places import Folder, Place


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """What stays; without any of the three, everything.

    ``last`` so many of the highest steps, ``every`` step that this number divides, and the ``best`` one by a value that
    was given to ``save``: its name and ``"min"`` or ``"max"``.
    """

    last: int | None = None
    every: int | None = None
    best: tuple[str, Literal["min", "max"]] | None = None

    def check(self) -> None:
        """Raises BadValue: something in it makes no sense."""
        for name, number in (("keep_last", self.last), ("keep_every", self.every)):
            if number is not None and not (type(number) is int and number > 0):
                raise BadValue(name, why=f"{number!r} is not a whole number from 1 on")
        if self.best is not None and tuple(self.best[1:]) not in (("min",), ("max",)):
            raise BadValue("best", why=f"{self.best!r} is not a pair", next_step='write it as best=("loss", "min")')

    def kept(self, found: Mapping[int, Mapping[str, Any]]) -> frozenset[int]:
        """Those of the steps that stay; ``found`` has the values of each valid checkpoint."""
        steps = sorted(found, reverse=True)
        if self.last is None and self.every is None and self.best is None:
            return frozenset(steps)
        stay = set(steps[: self.last or 1])
        if self.every is not None:
            stay |= {step for step in steps if step % self.every == 0}
        if self.best is not None:
            stay |= self._best(found)
        return frozenset(stay)

    def _best(self, found: Mapping[int, Mapping[str, Any]]) -> set[int]:
        name, way = self.best or ("", "min")
        known = {step: values[name] for step, values in found.items() if _is_number(values.get(name))}
        if not known:
            return set()
        wanted = (min if way == "min" else max)(known.values())
        return {max(step for step, value in known.items() if value == wanted)}


def prune(place: Place, keep: Keep, busy: Collection[int] = ()) -> list[int]:
    """Remove from a place what need not stay, and is not ``busy``: being copied or read. The steps that went.

    What has no valid manifest, or lacks a file, does not count as one that stays, and is left alone: somebody may want
    to look at it.

    Raises:
        PlaceUnusable: the place cannot be read or written.
    """
    found = {step: known.values for step in place.steps() if (known := _whole(place, step)) is not None}
    gone = sorted(set(found) - keep.kept(found) - set(busy))
    for step in gone:
        place.remove(step)
    if isinstance(place, Folder):
        place.sweep()
    return gone


def _whole(place: Place, step: int) -> Manifest | None:
    try:
        found = place.manifest(step)
    except CheckpointUnreadable:
        return None
    if isinstance(place, Folder) and any(manifest.damages(place.folder(step), found, contents=False)):
        return None
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
