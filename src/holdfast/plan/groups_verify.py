"""Whether process groups are what they have to be: of a setup, or of a person's own lists.

Each rank is in exactly one group of each kind; kinds that are axes of one mesh share at most one rank group by group,
and their sizes multiply to the world size; and all ranks make all groups in the same order, also those that they are
not in: ``torch.distributed.new_group`` waits for everybody (torch/distributed/distributed_c10d.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, zip_longest
from math import prod

import msgspec
import numpy as np

from holdfast.errors import BadValue
from holdfast.plan.groups import Groups, Ranks

#: Kinds that are axes of a mesh, as people call them; others may be made of several.
_OF_A_MESH = {
    "tp", "tensor", "cp", "context", "pp", "pipeline", "dp", "data", "dp_replicate", "dp_shard",
}  # fmt: skip
_DATA = {"dp", "data"}
_SHOWN = 8
#: Groups of one kind.
Lists = Sequence[Sequence[int]] | Ranks
_MOST_RANKS = 1 << 20


class Flaw(msgspec.Struct, frozen=True):
    """What is wrong with a kind of groups, in a sentence, and which ranks it is about."""

    kind: str
    text: str
    ranks: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def read(document: object) -> dict[str, list[list[int]]]:
    """Groups by kind as JSON or YAML has them: ``{"tp": [[0, 1], [2, 3]], "pp": [[0, 2], [1, 3]]}``.

    Raises:
        BadValue: it is of another form.
    """
    if not isinstance(document, dict) or not document:
        raise BadValue("the groups", why='they have to be lists of ranks by kind: {"tp": [[0, 1], [2, 3]]}')
    for kind, lists in document.items():
        if not isinstance(kind, str) or not isinstance(lists, list):
            raise BadValue(f"the groups {str(kind)[:50]!r}", why="they have to be a list of lists of ranks")
        for place, group in enumerate(lists):
            if not isinstance(group, list) or not all(type(rank) is int for rank in group):
                raise BadValue(f"group {place} of {kind[:50]!r}", why="it has to be a list of whole numbers")
    return document


def verify(found: Groups | Mapping[str, Sequence[Sequence[int]]], world_size: int, per_node: int = 0) -> list[Flaw]:
    """All flaws; none where the groups are right. With ``per_node`` tensor-parallel groups have to stay in a node.

    Raises:
        BadValue: a world size that cannot be.
    """
    if not 1 <= world_size <= _MOST_RANKS:
        raise BadValue(f"a world size of {world_size}", why=f"it has to be from 1 to {_MOST_RANKS}")
    given: Mapping[str, Lists]
    given = {kind: found.ranks(kind) for kind in found.kinds} if isinstance(found, Groups) else found
    flaws: list[Flaw] = []
    whole: dict[str, Ranks] = {}
    sizes: dict[str, int] = {}
    for kind, lists in given.items():
        wrong = list(_of_kind(kind, lists, world_size))
        flaws += wrong
        if not wrong:
            whole[kind] = _numbers(lists, world_size)
            sizes[kind] = len(lists[0])
            if per_node and kind in ("tp", "tensor"):
                flaws += _crossing(kind, lists, per_node)
    axes = [kind for kind in given if kind in _OF_A_MESH]
    if {"dp_replicate", "dp_shard"} & set(axes):  # which dp is made of
        axes = [kind for kind in axes if kind not in _DATA]
    if all(kind in whole for kind in axes):
        flaws += _of_mesh({kind: whole[kind] for kind in axes}, sizes, world_size)
    return flaws


def _of_kind(kind: str, lists: Lists, world_size: int) -> Iterator[Flaw]:
    """Each rank in exactly one group, groups of one size."""
    lengths = np.array([len(group) for group in lists], dtype=np.int64)
    ranks = np.concatenate([np.asarray(group, dtype=object) for group in lists]) if len(lists) else np.array([])
    outside = sorted({int(rank) for rank in ranks if not 0 <= rank < world_size})
    if outside:
        yield Flaw(kind, f"there {_are(outside)} in a world of {world_size}", tuple(outside))
    inside = np.array([rank for rank in ranks if 0 <= rank < world_size], dtype=np.int64)
    times = np.bincount(inside, minlength=world_size)
    missing = np.flatnonzero(times == 0).tolist()
    if missing:
        part = f", {len(missing) / world_size:.0%} of all" if len(missing) > 1 else ""
        yield Flaw(kind, f"{_named(missing)} {'are' if len(missing) > 1 else 'is'} in no group{part}", tuple(missing))
    twice = np.flatnonzero(times > 1).tolist()
    if twice:
        places = [place for place, group in enumerate(lists) if twice[0] in group]
        where = f" (rank {twice[0]} in groups {_listed(places)})" if len(places) > 1 else ""
        yield Flaw(kind, f"{_named(twice)} more than once{where}", tuple(twice))
    if len(set(lengths.tolist())) > 1:
        yield Flaw(kind, f"groups have {_listed(sorted(set(lengths.tolist())))} ranks, which no mesh has")


def _numbers(lists: Lists, world_size: int) -> Ranks:
    """Of each rank, the number of its group."""
    found = np.empty(world_size, dtype=np.int64)
    found[np.asarray(lists, dtype=np.int64)] = np.arange(len(lists))[:, None]
    return found


def _of_mesh(whole: Mapping[str, Ranks], sizes: Mapping[str, int], world_size: int) -> Iterator[Flaw]:
    """Two groups of different axes share one rank at most, and the axes' sizes multiply to the world size."""
    crossed = False
    for (one, first), (other, second) in combinations(whole.items(), 2):
        pairs, where, times = np.unique(first * world_size + second, return_index=True, return_counts=True)
        if len(pairs) < world_size:
            crossed = True
            place = int(where[times > 1][0])
            ranks = np.flatnonzero((first == first[place]) & (second == second[place])).tolist()
            yield Flaw(f"{one} and {other}", f"{_named(ranks)} are together in a group of both", tuple(ranks))
    product = prod(sizes[kind] for kind in whole)
    if len(whole) > 1 and product != world_size and not crossed:
        said = " x ".join(f"{kind} {sizes[kind]}" for kind in whole)
        yield Flaw("all", f"{said} is {product}, and the world size {world_size}")


def _crossing(kind: str, lists: Lists, per_node: int) -> Iterator[Flaw]:
    nodes = np.asarray(lists, dtype=np.int64) // per_node
    wide = np.flatnonzero((nodes != nodes[:, :1]).any(axis=1))
    if len(wide):
        group = list(lists[int(wide[0])])
        reached = sorted(set(nodes[int(wide[0])].tolist()))
        text = f"{len(wide)} of {len(lists)} groups cross nodes of {per_node}"
        yield Flaw(kind, f"{text}, as {_named(group)} in nodes {_listed(reached)}", tuple(int(rank) for rank in group))


def verify_orders(made: Mapping[int, Sequence[Sequence[int]]], world_size: int) -> list[Flaw]:
    """Whether all ranks make the same groups in the same order; ``made`` are each rank's, in its own.

    Raises:
        BadValue: a world size that cannot be.
    """
    if not 1 <= world_size <= _MOST_RANKS:
        raise BadValue(f"a world size of {world_size}", why=f"it has to be from 1 to {_MOST_RANKS}")
    silent = [rank for rank in range(world_size) if rank not in made]
    flaws: list[Flaw] = []
    if silent:
        text = f"{_named(silent)} {'make' if len(silent) > 1 else 'makes'} no group"
        flaws.append(Flaw("order", text, tuple(silent)))
    if not made:
        return flaws
    first = min(made)
    for rank in sorted(made):
        for place, (one, other) in enumerate(zip_longest(made[first], made[rank])):
            if one is None or other is None or list(one) != list(other):
                text = f"as number {place}, rank {first} makes {_group(one)} and rank {rank} {_group(other)}"
                flaws.append(Flaw("order", text, (first, rank)))
                break
    return flaws


def _group(group: Sequence[int] | None) -> str:
    return "none" if group is None else f"[{_listed(list(group))}]"


def _are(ranks: Sequence[int]) -> str:
    return f"are no {_named(ranks)}" if len(ranks) > 1 else f"is no {_named(ranks)}"


def _named(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {_listed(ranks)}"


def _listed(numbers: Sequence[int]) -> str:
    """The first ones, runs of them in short."""
    parts: list[str] = []
    start = 0
    for place in range(1, len(numbers) + 1):
        if place == len(numbers) or numbers[place] != numbers[place - 1] + 1:
            first, last = numbers[start], numbers[place - 1]
            parts += [f"{first} to {last}"] if last - first > 1 else [str(each) for each in numbers[start:place]]
            start = place
        if len(parts) > _SHOWN:
            return ", ".join(parts[:_SHOWN]) + ", …"
    return ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else "".join(parts)
