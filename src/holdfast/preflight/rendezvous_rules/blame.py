"""Find the host, direction or link that failing pairs have in common."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import msgspec

#: A host is blamed from this share of its pairs on; no host is from this share of all pairs on.
_HOST_SHARE, _ALL_SHARE = 0.5, 0.9
#: More failing links than this without a common host are reported together.
_MAX_LINKS = 64


class Suspect(msgspec.Struct, frozen=True):
    """What pairs have in common; ``host``: None for a link.

    ``inward``, ``outward``: failing direction.

    ``widespread``: widespread pairs without a common host, as when all hosts have the same
    firewall.
    """

    pairs: tuple[tuple[int, int], ...]
    host: int | None = None
    inward: bool = False
    outward: bool = False
    widespread: bool = False

    @property
    def host_count(self) -> int:
        """Return the number of hosts in the pairs."""
        return len({host for pair in self.pairs for host in pair})


def find_suspects(failing: Iterable[tuple[int, int]], size: int) -> tuple[Suspect, ...]:
    """Return a small set of suspects, greedily: hosts with most failing pairs first, then links.

    ``failing`` are (source, target) of ``size`` hosts. Two hosts have nothing in common, and both
    directions are one link. O(pairs), plus O(size + its pairs) for each blamed host.
    """
    pairs = dict.fromkeys(failing)
    if size > 2 and len(pairs) >= _ALL_SHARE * size * (size - 1):
        return (Suspect(tuple(pairs), widespread=True),)
    suspects = list(_blamed_hosts(pairs, size)) if size > 2 else []
    for suspect in suspects:
        for pair in suspect.pairs:
            del pairs[pair]
    links = sorted({(min(pair), max(pair)) for pair in pairs})
    if len(links) > _MAX_LINKS:
        return (*suspects, Suspect(tuple(pairs), widespread=True))
    for first, second in links:
        suspects.append(
            Suspect(tuple(pair for pair in ((first, second), (second, first)) if pair in pairs))
        )
    return tuple(suspects)


def _blamed_hosts(failing: Iterable[tuple[int, int]], size: int) -> Iterator[Suspect]:
    """Yield hosts most of whose pairs with unblamed hosts fail, each with its pairs."""
    inward, outward = Counter[int](), Counter[int]()
    pairs_of: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for source, target in failing:
        inward[target] += 1
        outward[source] += 1
        pairs_of[source].add((source, target))
        pairs_of[target].add((source, target))
    blamed = 0
    while pairs_of:
        host = max(pairs_of, key=lambda each: (inward[each] + outward[each], inward[each], -each))
        threshold = max(_HOST_SHARE * (size - blamed - 1), 2)
        into, out_of = (counted[host] >= threshold for counted in (inward, outward))
        if not into and not out_of:
            return
        own_pairs = pairs_of.pop(host)
        blamed += 1
        yield Suspect(tuple(sorted(own_pairs)), host, into, out_of)
        for source, target in own_pairs:
            inward[target] -= 1
            outward[source] -= 1
            pairs_of[source if target == host else target].discard((source, target))
