"""Selection by content: the number of selected elements depends on rank-local data."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.lint.abstract_domain.values import RANK_KINDS, Taint, TaintKind, Value, merge_content
from holdfast.lint.abstract_state.abstract_objects import BATCH
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.state import InterpreterState

#: Functions and methods whose result length depends on the content.
SELECTING = frozenset({
    "nonzero", "argwhere", "flatnonzero", "masked_select", "unique", "unique_consecutive", "nms",
    "batched_nms",
})  # fmt: skip


def seed_taint(content: Taint) -> Taint:
    """Return the taint of random numbers: a rank-dependent seed makes the data differ."""
    return tuple(
        replace(source, kind=TaintKind.DATA) if source.kind in RANK_KINDS else source
        for source in content
    )


def selection_taint(state: InterpreterState, call: LibraryCall, *values: Value) -> Taint:
    """Return why ranks select different numbers of elements."""
    content = merge_content(values)
    if not content and any(BATCH in value.objects for value in values):
        return state.taint_source(call.frame, TaintKind.DATA, call.node)
    return tuple(replace(source, kind=TaintKind.DATA) for source in content)
