"""From pairs that fail to the host, the direction or the link that they have in common."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import msgspec

#: A host is blamed where so large a part of its possible pairs fails; no host is where so large a part of all does.
_MOST, _ALL = 0.5, 0.9
#: More links than this that have no host in common are one matter of all.
_FEW_LINKS = 64


class Suspect(msgspec.Struct, frozen=True):
    """What pairs have in common. ``host``: None for a link; ``inward``, ``outward``: which way packets fail.

    ``many``: neither a host nor a link, but many pairs all over the set, as where all hosts have the same firewall.
    """

    pairs: tuple[tuple[int, int], ...]
    host: int | None = None
    inward: bool = False
    outward: bool = False
    many: bool = False

    @property
    def hosts(self) -> int:
        """How many hosts the pairs are of."""
        return len({host for pair in self.pairs for host in pair})


def blame(failing: Iterable[tuple[int, int]], size: int) -> tuple[Suspect, ...]:
    """The fewest suspects, found greedily: the host with most failing pairs first, then what is left as links.

    ``failing`` are (source, target); among two hosts there is nothing in common, and both directions are one link.
    O(pairs) and, for each host that is blamed, O(size + its pairs).
    """
    pairs = dict.fromkeys(failing)
    if size > 2 and len(pairs) >= _ALL * size * (size - 1):
        return (Suspect(tuple(pairs), many=True),)
    suspects = list(_hosts(pairs, size)) if size > 2 else []
    for suspect in suspects:
        for pair in suspect.pairs:
            del pairs[pair]
    links = sorted({(min(pair), max(pair)) for pair in pairs})
    if len(links) > _FEW_LINKS:
        return (*suspects, Suspect(tuple(pairs), many=True))
    for first, second in links:
        suspects.append(Suspect(tuple(pair for pair in ((first, second), (second, first)) if pair in pairs)))
    return tuple(suspects)


def _hosts(failing: Iterable[tuple[int, int]], size: int) -> Iterator[Suspect]:
    """Those of whose pairs with hosts that are not yet blamed most fail, each with its pairs."""
    inward, outward = Counter[int](), Counter[int]()
    left: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for source, target in failing:
        inward[target] += 1
        outward[source] += 1
        left[source].add((source, target))
        left[target].add((source, target))
    blamed = 0
    while left:
        host = max(left, key=lambda each: (inward[each] + outward[each], inward[each], -each))
        most = max(_MOST * (size - blamed - 1), 2)
        into, out_of = (counted[host] >= most for counted in (inward, outward))
        if not into and not out_of:
            return
        mine = left.pop(host)
        blamed += 1
        yield Suspect(tuple(sorted(mine)), host, into, out_of)
        for source, target in mine:
            inward[target] -= 1
            outward[source] -= 1
            left[source if target == host else target].discard((source, target))
