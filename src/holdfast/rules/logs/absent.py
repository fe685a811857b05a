"""Who is left when those who complain are taken away: the rank that they waited for says nothing of it."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.rules.logs.heard import Heard


def world(heard: Heard) -> int | None:
    """The number of ranks, as NCCL or a launcher tells; the greatest, for groups are told of as well."""
    told = [int(number) for signal in heard.all("world-size") for number in signal.fields.values()]
    return max([heard.facts.world_size or 0, *told]) or None


def absent(heard: Heard, present: Collection[int | None]) -> int | None:
    """The one rank that is not among ``present``; None where more are left, or nothing tells how many there are."""
    there = {rank for rank in present if rank is not None}
    if not there:
        return None
    size = world(heard)
    ranks = set(range(size)) if size and size > max(there) else heard.facts.ranks.keys() | there
    left = ranks - there
    if not left and len(there) > 1:
        left = set(range(max(there))) - there  # a gap in their numbers
    return min(left) if len(left) == 1 else None
