"""Time axis of the incident chart; long gaps are shortened so that bursts stay legible."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

import msgspec

#: Maximum share of the width for one gap; a longer gap is shortened and marked as a break.
MAX_GAP_SHARE = 0.12
#: Share of the width for the time since the last progress.
SILENCE_SHARE = 0.4


class AxisBreak(msgspec.Struct, frozen=True):
    """A part of the axis, from ``left`` to ``right``, that is too short for its ``seconds``."""

    left: float
    right: float
    seconds: float


class TimeAxis(msgspec.Struct, frozen=True):
    """Maps Unix time to a horizontal position, linearly between ``moments`` at ``places``.

    ``last_progress`` is the begin of the stall, or the end of the axis.
    """

    moments: tuple[float, ...]
    places: tuple[float, ...]
    last_progress: float
    breaks: tuple[AxisBreak, ...] = ()

    def x(self, moment: float) -> float:
        """Return the position of ``moment``; outside the axis, that of the nearer end."""
        right = bisect_right(self.moments, moment)
        if right == 0:
            return self.places[0]
        if right == len(self.moments):
            return self.places[-1]
        begin, end = self.moments[right - 1], self.moments[right]
        left, length = self.places[right - 1], self.places[right] - self.places[right - 1]
        return left + length * (moment - begin) / (end - begin)

    def nearest(self, place: float) -> float:
        """Return the moment among ``moments`` whose position is nearest to ``place``."""
        return min(
            zip(self.moments, self.places, strict=True), key=lambda pair: abs(pair[1] - place)
        )[0]


def make_axis(
    events: Iterable[float], begin: float, end: float, left: float, right: float, *, stalled: bool
) -> TimeAxis:
    """Return the axis from ``begin`` to ``end`` between the positions ``left`` and ``right``.

    ``events`` are the times between which gaps are scaled. ``stalled``: collectives are in flight
    at the end; the time since the last event then has a separate part.
    """
    end = max(end, begin)
    moments = sorted({begin, *(moment for moment in events if begin < moment < end)})
    split = right - SILENCE_SHARE * (right - left) if stalled and moments[-1] < end else right
    if split == right:
        moments.append(end)
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    shares = _gap_shares(gaps)
    places = [left]
    for share in shares:
        places.append(places[-1] + share * (split - left))
    breaks = _find_breaks(gaps, shares, places)
    last_progress = moments[-1]
    if split < right:
        moments.append(end)
        places.append(right)
    return TimeAxis(tuple(moments), tuple(places), last_progress, breaks)


def _gap_shares(gaps: list[float]) -> list[float]:
    """Return shares of the width, proportional to the gaps up to MAX_GAP_SHARE; their sum is 1."""
    shares = [0.0] * len(gaps)
    width, seconds = 1.0, sum(gaps)
    longest_first = sorted(range(len(gaps)), key=lambda index: -gaps[index])
    for position, index in enumerate(longest_first):
        if gaps[index] * width <= MAX_GAP_SHARE * seconds:
            for rest in longest_first[position:]:
                shares[rest] = gaps[rest] * width / seconds if seconds > 0 else 0.0
            break
        shares[index] = MAX_GAP_SHARE
        width, seconds = width - MAX_GAP_SHARE, seconds - gaps[index]
    total = sum(shares)
    return [share / total for share in shares] if total > 0 else [1 / len(gaps) for _ in gaps]


def _find_breaks(
    gaps: list[float], shares: list[float], places: list[float]
) -> tuple[AxisBreak, ...]:
    """Return the shortened gaps: those with less width per second than the widest scale."""
    scales = [share / gap if gap > 0 else 0.0 for gap, share in zip(gaps, shares, strict=True)]
    widest = max(scales, default=0.0)
    return tuple(
        AxisBreak(places[index], places[index + 1], gaps[index])
        for index, scale in enumerate(scales)
        if gaps[index] > 0 and scale < 0.8 * widest
    )
