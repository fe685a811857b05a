"""Verify process groups of a setup or of a user's own lists.

Each rank is in exactly one group of each kind. Kinds that are axes of one mesh share at most one
rank per pair of groups, and their sizes multiply to the world size. All ranks create all groups in
the same order, including groups they are not in: ``torch.distributed.new_group`` waits for all
ranks (torch/distributed/distributed_c10d.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import prod

import msgspec
import numpy as np

from holdfast.core.errors import InvalidValue
from holdfast.plan.layout.process_groups import ProcessGroups, RankArray

#: Common names of mesh axes; other kinds may combine several axes.
_MESH_AXES = set(
    """
    tp tensor cp context pp pipeline dp data dp_replicate dp_shard
    """.split()
)
_DATA_AXES = {"dp", "data"}
_MAX_SHOWN = 8
#: Groups of one kind.
GroupLists = Sequence[Sequence[int]] | RankArray
_MAX_RANKS = 1 << 20


class GroupProblem(msgspec.Struct, frozen=True):
    """A problem with a kind of group, in a sentence, and the affected ranks."""

    kind: str
    text: str
    ranks: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def parse_groups(document: object) -> dict[str, list[list[int]]]:
    """Parse groups by kind from JSON or YAML: ``{"tp": [[0, 1], [2, 3]], "pp": [[0, 2], [1, 3]]}``.

    Raises:
        InvalidValue: the document has another structure.
    """
    if not isinstance(document, dict) or not document:
        raise InvalidValue(
            "the groups", why='must be lists of ranks by kind: {"tp": [[0, 1], [2, 3]]}'
        )
    for kind, lists in document.items():
        if not isinstance(kind, str) or not isinstance(lists, list):
            raise InvalidValue(
                f"the groups {str(kind)[:50]!r}", why="must be a list of lists of ranks"
            )
        for index, group in enumerate(lists):
            if not isinstance(group, list) or not all(type(rank) is int for rank in group):
                raise InvalidValue(
                    f"group {index} of {kind[:50]!r}", why="must be a list of integers"
                )
    return document


def verify_groups(
    groups: ProcessGroups | Mapping[str, Sequence[Sequence[int]]],
    world_size: int,
    per_node: int = 0,
) -> list[GroupProblem]:
    """Return all problems; with ``per_node``, tensor-parallel groups must stay within a node.

    Raises:
        InvalidValue: an invalid world size.
    """
    if not 1 <= world_size <= _MAX_RANKS:
        raise InvalidValue(f"a world size of {world_size}", why=f"must be from 1 to {_MAX_RANKS}")
    groups_by_kind: Mapping[str, GroupLists]
    groups_by_kind = (
        {kind: groups.ranks(kind) for kind in groups.kinds}
        if isinstance(groups, ProcessGroups)
        else groups
    )
    problems: list[GroupProblem] = []
    indices: dict[str, RankArray] = {}
    sizes: dict[str, int] = {}
    for kind, lists in groups_by_kind.items():
        kind_problems = list(_check_kind(kind, lists, world_size))
        problems += kind_problems
        if not kind_problems:
            indices[kind] = _group_indices(lists, world_size)
            sizes[kind] = len(lists[0])
            if per_node and kind in ("tp", "tensor"):
                problems += _check_node_crossing(kind, lists, per_node)
    axes = [kind for kind in groups_by_kind if kind in _MESH_AXES]
    if {"dp_replicate", "dp_shard"} & set(axes):  # dp combines both
        axes = [kind for kind in axes if kind not in _DATA_AXES]
    if all(kind in indices for kind in axes):
        problems += _check_axes({kind: indices[kind] for kind in axes}, sizes, world_size)
    return problems


def _check_kind(kind: str, lists: GroupLists, world_size: int) -> Iterator[GroupProblem]:
    """Check that each rank is in exactly one group, and that groups have one size."""
    lengths = np.array([len(group) for group in lists], dtype=np.int64)
    ranks = (
        np.concatenate([np.asarray(group, dtype=object) for group in lists])
        if len(lists)
        else np.array([])
    )
    outside = sorted({int(rank) for rank in ranks if not 0 <= rank < world_size})
    if outside:
        yield GroupProblem(
            kind,
            f"invalid {_format_ranks(outside)} for a world size of {world_size}",
            tuple(outside),
        )
    inside = np.array([rank for rank in ranks if 0 <= rank < world_size], dtype=np.int64)
    counts = np.bincount(inside, minlength=world_size)
    missing = np.flatnonzero(counts == 0).tolist()
    if missing:
        share = f", {len(missing) / world_size:.0%} of all" if len(missing) > 1 else ""
        yield GroupProblem(
            kind,
            f"{_format_ranks(missing)} {'are' if len(missing) > 1 else 'is'} in no group{share}",
            tuple(missing),
        )
    repeated = np.flatnonzero(counts > 1).tolist()
    if repeated:
        indices = [index for index, group in enumerate(lists) if repeated[0] in group]
        location = (
            f" (rank {repeated[0]} in groups {_format_numbers(indices)})"
            if len(indices) > 1
            else ""
        )
        yield GroupProblem(
            kind, f"{_format_ranks(repeated)} in more than one group{location}", tuple(repeated)
        )
    if len(set(lengths.tolist())) > 1:
        yield GroupProblem(
            kind,
            f"groups have {_format_numbers(sorted(set(lengths.tolist())))} ranks; all groups of "
            "a mesh axis have one size",
        )


def _group_indices(lists: GroupLists, world_size: int) -> RankArray:
    """Return the group number of each rank."""
    indices = np.empty(world_size, dtype=np.int64)
    indices[np.asarray(lists, dtype=np.int64)] = np.arange(len(lists))[:, None]
    return indices


def _check_axes(
    indices: Mapping[str, RankArray], sizes: Mapping[str, int], world_size: int
) -> Iterator[GroupProblem]:
    """Check that groups of different axes share at most one rank and that sizes match the world."""
    has_overlap = False
    for (one, first), (other, second) in combinations(indices.items(), 2):
        pairs, first_ranks, counts = np.unique(
            first * world_size + second, return_index=True, return_counts=True
        )
        if len(pairs) < world_size:
            has_overlap = True
            first_rank = int(first_ranks[counts > 1][0])
            ranks = np.flatnonzero(
                (first == first[first_rank]) & (second == second[first_rank])
            ).tolist()
            yield GroupProblem(
                f"{one} and {other}",
                f"{_format_ranks(ranks)} share a group of both kinds",
                tuple(ranks),
            )
    product = prod(sizes[kind] for kind in indices)
    if len(indices) > 1 and product != world_size and not has_overlap:
        product_text = " x ".join(f"{kind} {sizes[kind]}" for kind in indices)
        yield GroupProblem(
            "all", f"{product_text} is {product}, but the world size is {world_size}"
        )


def _check_node_crossing(kind: str, lists: GroupLists, per_node: int) -> Iterator[GroupProblem]:
    nodes = np.asarray(lists, dtype=np.int64) // per_node
    crossing = np.flatnonzero((nodes != nodes[:, :1]).any(axis=1))
    if len(crossing):
        group = list(lists[int(crossing[0])])
        group_nodes = sorted(set(nodes[int(crossing[0])].tolist()))
        text = f"{len(crossing)} of {len(lists)} groups cross nodes of {per_node}"
        yield GroupProblem(
            kind,
            f"{text}, as {_format_ranks(group)} in nodes {_format_numbers(group_nodes)}",
            tuple(int(rank) for rank in group),
        )


def _format_ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {_format_numbers(ranks)}"


def _format_numbers(numbers: Sequence[int]) -> str:
    """Format the first numbers, with runs abbreviated."""
    parts: list[str] = []
    start = 0
    for index in range(1, len(numbers) + 1):
        if index == len(numbers) or numbers[index] != numbers[index - 1] + 1:
            first, last = numbers[start], numbers[index - 1]
            parts += (
                [f"{first} to {last}"]
                if last - first > 1
                else [str(number) for number in numbers[start:index]]
            )
            start = index
        if len(parts) > _MAX_SHOWN:
            return ", ".join(parts[:_MAX_SHOWN]) + ", …"
    return ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else "".join(parts)
