"""Compares the magnitude of each file's values with that of the other files' parts of a tensor.

The parts of one tensor have similar magnitudes. A file of an earlier step or another run has other
ones in all its tensors: Adam's second moment alone grows twentyfold from step 3 to step 60.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from statistics import median

import msgspec

from holdfast.ckpt.verify.file_pass import ValueSpan

#: Sections compared; a gradient's mean (exp_avg) changes too much by chance.
_SECTIONS = ("model", "exp_avg_sq")
_MIN_VALUES, _MIN_TENSORS, _MIN_SHARE = 64, 5, 0.9
#: Ratio of root mean squares: of nearly all tensors, and their median.
_MIN_RATIO, _MIN_MEDIAN = 2.5, 4.0


class ScaleDifference(msgspec.Struct, frozen=True):
    """In ``tensors`` tensors, the values of ``section`` in ``file`` are ``ratio`` times others'."""

    file: str
    section: str
    ratio: float
    tensors: int


def compare_scales(spans: Iterable[ValueSpan]) -> tuple[ScaleDifference, ...]:
    """Return the files whose values have another magnitude in nearly all tensors they share."""
    sums: dict[tuple[str, str], dict[str, tuple[float, int]]] = {}
    for span in spans:
        if span.key[0] in _SECTIONS and span.complete:
            by_file = sums.setdefault(span.key[:2], {})
            squares, sampled = by_file.get(span.file, (0.0, 0))
            by_file[span.file] = (squares + span.counts.squares, sampled + span.counts.sampled)
    return tuple(_differences(sums))


def _differences(
    sums: Mapping[tuple[str, str], Mapping[str, tuple[float, int]]],
) -> Iterator[ScaleDifference]:
    ratios: dict[tuple[str, str], list[float]] = {}
    for (section, _), by_file in sums.items():
        squares, sampled = (sum(column) for column in zip(*by_file.values(), strict=True))
        for file, (own, count) in by_file.items():
            others, rest = squares - own, sampled - count
            if min(count, rest) >= _MIN_VALUES and own > 0 and others > 0:
                ratio = 0.5 * math.log(own / count * rest / others)
                ratios.setdefault((section, file), []).append(ratio)
    for (section, file), logs in ratios.items():
        middle = median(logs)
        same = sum(math.copysign(entry, entry * middle) >= math.log(_MIN_RATIO) for entry in logs)
        if (
            len(logs) >= _MIN_TENSORS
            and abs(middle) >= math.log(_MIN_MEDIAN)
            and same >= _MIN_SHARE * len(logs)
        ):
            yield ScaleDifference(file, section, math.exp(middle), len(logs))
