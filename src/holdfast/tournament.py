"""Who is measured with whom, and when: a round-robin tournament, in which no host is in two pairs at once.

The circle method: one place stands still and the others move on by one each round. n hosts meet in n - 1 rounds (n
where n is odd, and one rests), each pair once.
"""

from __future__ import annotations

from collections.abc import Iterator


def rounds(size: int) -> int:
    """How many rounds there are."""
    return 0 if size < 2 else size - 1 + size % 2


def pairs(size: int, number: int) -> Iterator[tuple[int, int]]:
    """The disjoint pairs of round ``number``, counted from 0, the smaller first."""
    places = size + size % 2
    turning = places - 1
    for at in range(places // 2):
        first = turning if at == 0 else (number + at) % turning
        second = (number - at) % turning
        if max(first, second) < size:
            yield min(first, second), max(first, second)
