"""Measures regular extra work of a rank, such as logging or saving every N steps.

A slow rank is late in every step. Extra work is rare, long and regular: a pause between two
collectives that is much longer than usual, at equal distances in calls.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from holdfast.core.rank_table import NO_EXTRA_WORK, ExtraWork

#: The usual pause is this quantile: at most every tenth pause is extra work.
_USUAL = 0.9
#: Minimum length, as a multiple of the usual pause, and in seconds beyond it.
_MIN_FACTOR, _MIN_S = 2.5, 0.05
#: Minimum number of pauses, and maximum relative deviation of the distances between them.
_MIN_COUNT, _MAX_DEVIATION = 4, 0.25


def measure_extra_work(begins: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> ExtraWork:
    """Return the extra work between collectives, by their times in seconds, in order of begin."""
    if len(begins) < _MIN_COUNT / (1 - _USUAL):
        return NO_EXTRA_WORK
    pauses = np.clip(begins[1:] - np.maximum.accumulate(ends)[:-1], 0.0, None)
    usual = float(np.quantile(pauses, _USUAL))
    at = np.flatnonzero(pauses > max(_MIN_FACTOR * usual, usual + _MIN_S))
    if len(at) < _MIN_COUNT:
        return NO_EXTRA_WORK
    distances = np.diff(at)
    if float(distances.std()) > _MAX_DEVIATION * float(distances.mean()):
        return NO_EXTRA_WORK
    elapsed_s = float(ends.max() - begins[0])
    spent_s = float((pauses[at] - usual).sum())
    every_s = float(np.diff(begins[1:][at]).mean())
    return ExtraWork(round(spent_s / elapsed_s, 4), round(every_s, 2))


def add_phases(work: ExtraWork, in_phase: float) -> ExtraWork:
    """Return ``work``, with the share of the time in phases if that is more."""
    if in_phase <= work.share:
        return work
    return msgspec.structs.replace(work, share=round(in_phase, 4), in_phases=True)
