"""Methods of tensors, of generated text and of futures, whose results depend on rank-local data."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.lint.abstract_domain.values import (
    TaintKind,
    Value,
    combine_values,
    merge_content,
    merge_taint,
)
from holdfast.lint.abstract_state.abstract_objects import (
    BATCH,
    COUNT,
    MASK,
    PADDING,
    SHARD,
    SIZED_TENSOR,
    LibraryInstance,
)
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.elements import held_data
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.operand_counts import parts_of_size

_SIZE_METHODS = frozenset({"numel", "size", "dim", "nelement"})
_NEW_TENSOR_METHODS = frozenset({"new_zeros", "new_ones", "new_empty", "new_full"})


def size_method(call: LibraryCall) -> Value | None:
    """Return a size, or a new tensor of a size; None for other methods."""
    receiver = call.receiver
    if call.name in _SIZE_METHODS:
        count = (COUNT,) if BATCH in receiver.objects else ()
        return Value(content=receiver.length, known=receiver.known, objects=count)
    if call.name not in _NEW_TENSOR_METHODS:
        return None
    sizes = call.arguments.positional[: 1 if call.name == "new_full" else None]
    pads = (PADDING,) if any(PADDING in size.objects for size in sizes) else ()
    parts = parts_of_size(sizes[0]) if sizes else ()
    return Value(length=merge_content(sizes), objects=(SIZED_TENSOR, *pads, *parts))


def as_mask(_: InterpreterState, call: LibraryCall) -> Value:
    """Return a mask: how many elements it selects depends on rank-local data."""
    return replace(call.receiver, objects=(*call.receiver.objects, MASK))


def done(state: InterpreterState, call: LibraryCall) -> Value | None:
    """Return whether a future is done: each rank has its own time."""
    if call.arguments.all_values or call.receiver.agreed:
        return None
    return Value(state.taint_source(call.frame, TaintKind.CLOCK, call.node))


def generate(state: InterpreterState, call: LibraryCall) -> Value | None:
    """Return sequences that end where those of this rank's batch do."""
    limits = {"max_new_tokens", "max_length", "generation_config"} & call.arguments.named.keys()
    least, most = (call.arguments.node(-1, name) for name in ("min_new_tokens", "max_new_tokens"))
    if least is not None and most is not None and state.unparse(least) == state.unparse(most):
        return None
    if not limits or call.arguments.is_constant("synced_gpus", answer=True):
        return None
    data = state.taint_source(call.frame, TaintKind.DATA, call.node)
    return Value(length=data, known=False)


def batch_decode(_: InterpreterState, call: LibraryCall) -> Value:
    """Return one text for each sequence: those of ``generate`` differ in length, not in number."""
    value = combine_values(*call.arguments.all_values)
    count = tuple(source for source in value.length if ".generate(" not in source.text)
    return replace(value, content=merge_taint(value.content, value.length), length=count)


def tolist(state: InterpreterState, call: LibraryCall) -> Value | None:
    """Return the numbers of a batch as a list."""
    if BATCH not in call.receiver.objects or call.receiver.agreed:
        return None
    data = state.taint_source(call.frame, TaintKind.DATA, call.node)
    return Value(length=call.receiver.length, known=False, objects=held_data(Value(data)))


def state_dict(_: InterpreterState, call: LibraryCall) -> Value | None:
    """Return the state of an optimizer over sharded parameters: this rank's shard of it."""
    shards = any(
        obj.wrapped is not None and SHARD in obj.wrapped.objects
        for obj in call.receiver.objects_of(LibraryInstance)
        if obj.name == call.receiver_class == "optimizer"
    )
    return Value(known=False, objects=(SHARD,)) if shards else None
