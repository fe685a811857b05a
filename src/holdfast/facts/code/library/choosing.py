"""What is chosen by what is in it: how much that is, each rank's own data say."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.facts.code.arguments import LibraryCall
from holdfast.facts.code.state import State
from holdfast.facts.code.things import BATCH
from holdfast.facts.code.values import Kind, Sources, Value, merged

#: Functions and methods that give as many elements as there are of a kind.
CHOOSING = frozenset(
    {"nonzero", "argwhere", "flatnonzero", "masked_select", "unique", "unique_consecutive", "nms", "batched_nms"}
)
_OF_RANKS = frozenset({Kind.RANK, Kind.LOCAL_RANK})


def drawn(content: Sources) -> Sources:
    """Why numbers differ that come of a seed: who has its own draws its own data."""
    return tuple(replace(each, kind=Kind.DATA) if each.kind in _OF_RANKS else each for each in content)


def chosen(state: State, call: LibraryCall, *values: Value) -> Sources:
    """Why not all ranks choose as many out of these."""
    content = merged(*(each.content for each in values))
    if not content and any(BATCH in each.things for each in values):
        return state.source(call.frame, Kind.DATA, call.node)
    return tuple(replace(each, kind=Kind.DATA) for each in content)
