"""From pairs that fail to the host, the direction or the link that they have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

#: A host is blamed where so large a part of its possible pairs fails.
_MOST = 0.5


class Suspect(msgspec.Struct, frozen=True):
    """What pairs have in common. ``host``: None for a link; ``inward``, ``outward``: which way packets fail."""

    pairs: tuple[tuple[int, int], ...]
    host: int | None = None
    inward: bool = False
    outward: bool = False


def blame(failing: Iterable[tuple[int, int]], size: int) -> tuple[Suspect, ...]:
    """The fewest suspects, found greedily: the host with most failing pairs first, then what is left as links.

    ``failing`` are (source, target); among two hosts there is nothing in common, and both directions are one link.
    O(pairs + size) a suspect.
    """
    left = set(failing)
    suspects = []
    while left and size > 2:
        inward, outward = Counter(target for _, target in left), Counter(source for source, _ in left)
        host = max(inward.keys() | outward.keys(), key=lambda each: (inward[each] + outward[each], inward[each], -each))
        into, out_of = (counted[host] >= max(_MOST * (size - 1), 2) for counted in (inward, outward))
        if not into and not out_of:
            break
        mine = tuple(sorted(pair for pair in left if host in pair))
        suspects.append(Suspect(mine, host, into, out_of))
        left.difference_update(mine)
    links = {tuple(sorted(pair)) for pair in left}
    for first, second in sorted(links):
        mine = tuple(pair for pair in ((first, second), (second, first)) if pair in left)
        suspects.append(Suspect(mine))
    return tuple(suspects)
