"""The time axis of the picture: bursts of collectives stay legible beside silences, and no distortion is hidden."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

import msgspec

#: A single gap takes at most this share of the history; one that would take more is shortened and marked as a break.
LONGEST_GAP = 0.12
#: Share of the width for the time after the last progress, where there is any.
SILENCE_SHARE = 0.34


class Break(msgspec.Struct, frozen=True):
    """A stretch of the axis, from ``left`` to ``right``, drawn shorter than the ``seconds`` that it lasted."""

    left: float
    right: float
    seconds: float


class Axis(msgspec.Struct, frozen=True):
    """Maps Unix time to a horizontal place, linear between ``moments``, whose places are ``places``.

    ``last_progress`` is where the silence begins (the end of the axis where there is none).
    """

    moments: tuple[float, ...]
    places: tuple[float, ...]
    last_progress: float
    breaks: tuple[Break, ...] = ()

    def x(self, moment: float) -> float:
        """The place of ``moment``; what lies outside the axis is put on its nearer end."""
        right = bisect_right(self.moments, moment)
        if right == 0:
            return self.places[0]
        if right == len(self.moments):
            return self.places[-1]
        begin, end = self.moments[right - 1], self.moments[right]
        left, length = self.places[right - 1], self.places[right] - self.places[right - 1]
        return left + length * (moment - begin) / (end - begin)

    def nearest(self, place: float) -> float:
        """The moment among ``moments`` that is drawn nearest to ``place``."""
        return min(zip(self.moments, self.places, strict=True), key=lambda pair: abs(pair[1] - place))[0]


def make_axis(events: Iterable[float], begin: float, end: float, left: float, right: float, *, stalled: bool) -> Axis:
    """The axis from ``begin`` to ``end`` between the places ``left`` and ``right``, shaped by the times of ``events``.

    ``stalled`` says that collectives are in flight at the end; the time since the last event then has its own part.
    """
    end = max(end, begin)
    moments = sorted({begin, *(moment for moment in events if begin < moment < end)})
    split = right - SILENCE_SHARE * (right - left) if stalled and moments[-1] < end else right
    if split == right:
        moments.append(end)
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    shares = _shares(gaps)
    places = [left]
    for share in shares:
        places.append(places[-1] + share * (split - left))
    breaks = _breaks(gaps, shares, places)
    last_progress = moments[-1]
    if split < right:
        moments.append(end)
        places.append(right)
    return Axis(tuple(moments), tuple(places), last_progress, breaks)


def _shares(gaps: list[float]) -> list[float]:
    """Shares of the width, in proportion to the gaps as far as none exceeds LONGEST_GAP; they sum to 1."""
    shares = [0.0] * len(gaps)
    width, seconds = 1.0, sum(gaps)
    longest_first = sorted(range(len(gaps)), key=lambda index: -gaps[index])
    for position, index in enumerate(longest_first):
        if gaps[index] * width <= LONGEST_GAP * seconds:
            for rest in longest_first[position:]:
                shares[rest] = gaps[rest] * width / seconds if seconds > 0 else 0.0
            break
        shares[index] = LONGEST_GAP
        width, seconds = width - LONGEST_GAP, seconds - gaps[index]
    total = sum(shares)
    return [share / total for share in shares] if total > 0 else [1 / len(gaps) for _ in gaps]


def _breaks(gaps: list[float], shares: list[float], places: list[float]) -> tuple[Break, ...]:
    """Gaps that were shortened: whose scale differs from that of the gap drawn with the most width a second."""
    scales = [share / gap if gap > 0 else 0.0 for gap, share in zip(gaps, shares, strict=True)]
    fullest = max(scales, default=0.0)
    return tuple(
        Break(places[index], places[index + 1], gaps[index])
        for index, scale in enumerate(scales)
        if gaps[index] > 0 and scale < 0.8 * fullest
    )
