"""Round-robin schedule of pairwise measurements: no host is in two pairs of one round.

The circle method: one position is fixed and the others rotate by one each round. n hosts need n - 1
rounds (n if n is odd; one host rests per round), and each pair occurs once.
"""

from __future__ import annotations

from collections.abc import Iterator


def round_count(size: int) -> int:
    """Return the number of rounds for ``size`` participants."""
    return 0 if size < 2 else size - 1 + size % 2


def round_pairs(size: int, number: int) -> Iterator[tuple[int, int]]:
    """Yield the disjoint pairs of round ``number`` (from 0), smaller index first."""
    slots = size + size % 2
    rotating = slots - 1
    for at in range(slots // 2):
        first = rotating if at == 0 else (number + at) % rotating
        second = (number - at) % rotating
        if max(first, second) < size:
            yield min(first, second), max(first, second)
