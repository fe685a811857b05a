"""How much of its time each rank spends waiting in collectives: by that the one they wait for is found.

Only each rank's own clock is asked: in a collective in which all wait for the last, the last waits least. Hosts whose
clocks differ, and collectives that overlap, make no difference. The time is cut into slices, so that one long stall is
told from a rank that is late again and again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from holdfast import blackbox
from holdfast.facts.boxes import Box
from holdfast.facts.ranks import Slice

#: The slices that make a window: enough for a rule to say "nearly always".
SLICES = 12
#: Operations that end on no rank before all have come.
_ALL_WAIT = np.array([
    number for number, name in enumerate(blackbox.OPERATIONS)
    if name.startswith(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"))
])  # fmt: skip


class Waiting:
    """Follows the local ranks of one generation in slices of a window of ``window_s`` seconds; 0 for never."""

    def __init__(self, window_s: float) -> None:
        self._slice_s = window_s / SLICES
        self._measured: int | None = None
        self._slices: dict[int, deque[Slice]] = {}

    def look(self, boxes: Mapping[int, Box], now: float) -> None:
        """Measure the slices that have ended since the last call. ``now`` in Unix seconds; cheap when none has."""
        if self._slice_s <= 0:
            return
        ended = int(now / self._slice_s) - 1
        if self._measured is None or ended <= self._measured:
            self._measured = ended if self._measured is None else self._measured  # the first one had begun already
            return
        fresh = range(max(self._measured + 1, ended - SLICES + 1), ended + 1)
        self._measured = ended
        for rank, box in boxes.items():
            kept = self._slices.setdefault(rank, deque(maxlen=SLICES))
            kept.extend(measured(box, fresh, self._slice_s, now))

    def of(self, rank: int) -> tuple[Slice, ...]:
        """The newest slices of ``rank``, oldest first."""
        return tuple(self._slices.get(rank, ()))


def measured(box: Box, numbers: range, slice_s: float, now: float) -> list[Slice]:
    """The slices of one rank; those that its ring does not cover, or that lie in a phase, are left out."""
    rows, step = box.table(), box.step()
    if not len(rows):
        return []
    begins = (rows["entered"].astype(np.float64) + box.header.offset_ns) / 1e9
    oldest = begins[0] if box.begun > box.records else box.header.started
    ends = np.where(rows["completed"] > 0, (rows["completed"].astype(np.float64) + box.header.offset_ns) / 1e9, now)
    collective = np.isin(rows["operation"], _ALL_WAIT)
    untold = (rows["flags"] & blackbox.FLAG_NO_COMPLETION) != 0
    pairs = np.isin(rows["operation"], blackbox.POINT_TO_POINT)
    found = []
    for number in numbers:
        first, last = number * slice_s, (number + 1) * slice_s
        if oldest > first or (step.phase and step.phase_since < last):
            continue
        within = (begins >= first) & (begins < last)
        if np.any(within & (pairs | (untold & collective))):
            continue  # stages of a pipeline are late by design; of NCCL nobody tells when a call is over
        spans = collective & (begins < last) & (ends > first)
        waited_s = covered(np.clip(begins[spans], first, last), np.clip(ends[spans], first, last))
        found.append(Slice(number, round(waited_s / slice_s, 4), int(np.count_nonzero(within & collective))))
    return found


def covered(begins: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> float:
    """The length of the union of intervals."""
    if not len(begins):
        return 0.0
    order = np.argsort(begins)
    begins, reached = begins[order], np.maximum.accumulate(ends[order])
    free = np.maximum(begins[1:], reached[:-1])
    return float(reached[0] - begins[0] + np.clip(reached[1:] - free, 0.0, None).sum())
