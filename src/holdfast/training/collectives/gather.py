"""All-gather and reduce-scatter, on gloo without torch's copies.

torch's all_gather on gloo gathers into a flat buffer and copies from it, and its reduce_scatter
reduces everything on every rank. Here each rank's part is broadcast to its final place, and parts
are sent to the rank that reduces them; ranks of one host use shared memory if that is measured to
be faster. (Plain sends and receives would do too if a wait for one could be bounded: gloo closes
all connections of the group when such a wait times out, and ``is_completed`` stays False; measured
with torch 2.13.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist

from holdfast.core.keyword_hints import suggest_keywords
from holdfast.training.collectives import algorithm_choice
from holdfast.training.collectives.backend_calls import (
    as_bytes,
    as_reduce_op,
    start_all_gather,
    start_all_reduce,
    start_all_to_all,
    start_broadcast,
    uses_gloo,
)
from holdfast.training.collectives.bounded_wait import (
    begin_call,
    wait_for_all_ranks,
    wait_for_works,
)
from holdfast.training.collectives.broadcast import CHUNK_BYTES, WINDOW
from holdfast.training.collectives.call_text import dtype_name, operation_name
from holdfast.training.collectives.groups.arrivals import BoundedCall
from holdfast.training.collectives.groups.group_info import GroupState, runs_alone, state_of
from holdfast.training.collectives.reduction import Operation, can_fold, fold
from holdfast.training.collectives.scratch import PendingCopy, copy_back_in_order
from holdfast.training.collectives.shared_memory import transport
from holdfast.training.collectives.validation import check_alone, find_refusal

Tensors = torch.Tensor | Sequence[torch.Tensor]

#: Parts up to this size are sent to all at once if there are more than two ranks: a broadcast is
#: forwarded from rank to rank.
_SMALL_BYTES = 256 << 10
#: A reduce_scatter has this many chunks in flight, each of at most this many bytes per rank, and
#: over all ranks.
_SCATTER_WINDOW, _SCATTER_CHUNK_BYTES, _SCATTER_BYTES = 2, 1 << 20, 16 << 20


@suggest_keywords
def all_gather(
    output: Tensors,
    tensor: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    timeout: float | str | None = None,
) -> Tensors:
    """Gather the tensors of all ranks of ``group`` into ``output``, in rank order; return it.

    ``output``: one contiguous tensor with as many elements as all ranks' together, or a list of
    contiguous ones, one per rank. ``tensor`` may be this rank's part of it. On gloo: any dtype, and
    16 MiB of memory beside the output, except for parts below 256 KiB; ranks of one host may use
    shared memory (some MiB) if that is faster. Other backends gather into a scratch copy of the
    output's size. ``timeout``: as in :func:`holdfast.comm.all_reduce`.

    Raises:
        InvalidValue, CollectiveMismatch, CollectiveTimeout, CollectiveFailed, GroupBroken: as
            :func:`holdfast.comm.all_reduce`.
    """
    if runs_alone(group):
        check_alone("all_gather", _find_size_refusal(output, tensor, 1) or find_refusal(tensor))
        return _copy_alone(output, tensor)
    state = state_of(group)
    size = len(state.ranks)
    refusal = _find_size_refusal(output, tensor, size) or find_refusal(tensor, state)
    call = _begin_call("all_gather", tensor, timeout, state, refusal)
    if tensor.numel() == 0:
        wait_for_all_ranks(call)
        return output
    own_tensor = tensor.detach()
    if not uses_gloo(state, tensor):
        _gather_by_backend(output, own_tensor.contiguous(), call)
        return output
    parts, rank = _split_by_rank(output, state), state.group.rank()
    if own_tensor.nbytes <= _SMALL_BYTES and size > 2 and isinstance(output, torch.Tensor):
        sent = as_bytes(own_tensor.contiguous()).repeat(size)
        received = torch.empty_like(sent)
        wait_for_works([start_all_to_all(received, sent, state)], call)
        as_bytes(output.detach()).copy_(received)
        return output
    own_part = _source_part(own_tensor, parts, rank)
    flat = [as_bytes(own_part if root == rank else part) for root, part in enumerate(parts)]
    algorithms: dict[str, Callable[[], None]] = {
        "broadcasts": lambda: wait_for_works(
            copy_back_in_order(_start_broadcasts(flat, state), WINDOW), call
        )
    }
    if size > 1 and transport.is_available(call):
        algorithms["shared memory"] = lambda: transport.gather_in_memory(flat, call)
    algorithm_choice.run_fastest("all_gather", call, own_tensor.nbytes, algorithms)
    if own_part.data_ptr() != parts[rank].data_ptr():
        parts[rank].copy_(own_part)
    return output


@suggest_keywords
def reduce_scatter(
    output: torch.Tensor,
    tensor: Tensors,
    op: Operation = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    *,
    timeout: float | str | None = None,
) -> torch.Tensor:
    """Reduce ``tensor`` over the ranks of ``group``, and put this rank's part into ``output``.

    ``tensor``: one contiguous tensor with as many elements as all ranks' outputs, or a list of
    contiguous ones, one per rank; unchanged, unless ``output`` is this rank's part of it. On gloo
    the ranks are reduced in rank order, in chunks, with at most 64 MiB of memory. ``timeout``: as
    in :func:`holdfast.comm.all_reduce`.

    Raises:
        InvalidValue, CollectiveMismatch, CollectiveTimeout, CollectiveFailed, GroupBroken: as
            :func:`holdfast.comm.all_reduce`.
    """
    if runs_alone(group):
        check_alone("reduce_scatter", _find_size_refusal(tensor, output, 1) or find_refusal(output))
        return _copy_alone(output, tensor)
    state = state_of(group)
    refusal = _find_size_refusal(tensor, output, len(state.ranks))
    refusal = refusal or find_refusal(output, state, op)
    if not refusal and not output.is_contiguous():
        refusal = "the output is not contiguous"
    call = _begin_call(operation_name("reduce_scatter", op), output, timeout, state, refusal)
    if output.numel() == 0:
        wait_for_all_ranks(call)
        return output
    if uses_gloo(state, output) and can_fold(op, output.dtype) and len(state.ranks) > 1:
        flat, parts = output.detach().view(-1), _split_by_rank(tensor, state)
        algorithms: dict[str, Callable[[], None]] = {
            "exchange": lambda: wait_for_works(_exchange_and_fold(flat, parts, op, state), call)
        }
        if transport.is_available(call):
            algorithms["shared memory"] = lambda: transport.scatter_in_memory(flat, parts, op, call)
        algorithm_choice.run_fastest("reduce_scatter", call, flat.nbytes, algorithms)
    else:
        _scatter_by_backend(output.detach(), tensor, op, call)
    return output


def _begin_call(
    name: str, part: torch.Tensor, timeout: float | str | None, state: GroupState, refusal: str
) -> BoundedCall:
    signature = f"{name} of {part.numel():,} {dtype_name(part.dtype)} per rank"
    nbytes = part.numel() * part.element_size() * len(state.ranks)
    return begin_call(state, signature, timeout, nbytes=nbytes, refusal=refusal)


_Output = TypeVar("_Output", bound=Tensors)


def _copy_alone(output: _Output, source: Tensors) -> _Output:
    """Copy the only part to the only output, and return the output."""
    target = output if isinstance(output, torch.Tensor) else output[0]
    only = source if isinstance(source, torch.Tensor) else source[0]
    target.detach().copy_(only.detach().reshape(target.shape))
    return output


def _find_size_refusal(all_parts: Tensors, part: torch.Tensor, size: int) -> str:
    """Return why ``size`` times a ``part`` does not make up ``all_parts``; empty if it does."""
    is_one = isinstance(all_parts, torch.Tensor)
    tensors = [all_parts] if isinstance(all_parts, torch.Tensor) else list(all_parts)
    expected = part.numel() * (size if is_one else 1)
    if not is_one and len(tensors) != size:
        return f"the list has {len(tensors)} tensors for {size} ranks"
    for tensor in tensors:
        if tensor.numel() != expected:
            return f"a tensor has {tensor.numel():,} elements, but {size} ranks need {expected:,}"
        if tensor.dtype != part.dtype or tensor.device != part.device:
            return "the tensors differ in dtype or device"
        if not tensor.is_contiguous():
            return "a tensor that holds parts of several ranks is not contiguous"
        if tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled():
            return "a tensor requires a gradient, which would ignore the call; use tensor.detach()"
    return ""


def _split_by_rank(tensor: Tensors, state: GroupState) -> Sequence[torch.Tensor]:
    """Return the flat part of each rank of the group."""
    if isinstance(tensor, torch.Tensor):
        return tensor.detach().view(len(state.ranks), -1).unbind()
    return [part.detach().view(-1) for part in tensor]


def _source_part(tensor: torch.Tensor, parts: Sequence[torch.Tensor], rank: int) -> torch.Tensor:
    """Return this rank's flat tensor, copied if it lies in memory that receives other parts."""
    own = tensor.contiguous().view(-1)
    output_storages = {part.untyped_storage().data_ptr() for part in parts}
    overlaps = own.untyped_storage().data_ptr() in output_storages
    return own.clone() if overlaps and own.data_ptr() != parts[rank].data_ptr() else own


def _start_broadcasts(parts: Sequence[torch.Tensor], state: GroupState) -> Iterator[PendingCopy]:
    """Start the broadcasts of all parts, chunk by chunk, so that all ranks send and receive."""
    rank = state.group.rank()
    for chunks in zip(*(part.split(CHUNK_BYTES) for part in parts), strict=True):
        for root, chunk in enumerate(chunks):
            scratch = chunk if root == rank else torch.empty_like(chunk)
            yield start_broadcast(scratch, root, state), scratch, chunk


def _exchange_and_fold(
    out: torch.Tensor, parts: Sequence[torch.Tensor], op: Operation, state: GroupState
) -> Iterator[dist.Work]:
    """Yield the works of all chunks; after each wait, fold the chunk and reuse its memory.

    Each rank sends a chunk of each part to the rank that reduces the part.
    """
    size = len(parts)
    max_bytes = min(_SCATTER_CHUNK_BYTES, _SCATTER_BYTES // size)
    length = max(1, max_bytes // out.element_size())
    buffers = [
        out.new_empty(2, size, min(length, out.numel()))
        for _ in range(min(_SCATTER_WINDOW, -(-out.numel() // length)))
    ]
    pending: deque[tuple[dist.Work, torch.Tensor, torch.Tensor]] = deque()
    for index, start in enumerate(range(0, out.numel(), length)):
        if len(pending) == _SCATTER_WINDOW:
            yield from _fold_first(pending, op)
        target = out[start : start + length]
        used = size * target.numel()
        buffer = buffers[index % _SCATTER_WINDOW]
        sent, received = (half.view(-1)[:used].view(size, -1) for half in buffer)
        for row, part in zip(sent, parts, strict=True):
            row.copy_(part[start : start + length])
        work = start_all_to_all(received.view(-1), sent.view(-1), state)
        pending.append((work, received, target))
    while pending:
        yield from _fold_first(pending, op)


def _fold_first(
    pending: deque[tuple[dist.Work, torch.Tensor, torch.Tensor]], op: Operation
) -> Iterator[dist.Work]:
    work, received, target = pending.popleft()
    yield work
    fold(received.unbind(), op, target)


# ---- by the backend itself


def _gather_by_backend(output: Tensors, tensor: torch.Tensor, call: BoundedCall) -> None:
    if isinstance(output, torch.Tensor):
        scratch = torch.empty_like(output.detach())
        wait_for_works([start_all_gather(scratch, tensor, call.state)], call)
        output.detach().copy_(scratch)
        return
    received = [torch.empty_like(part.detach()) for part in output]
    wait_for_works([call.state.group.allgather([received], [tensor])], call)
    for part, scratch in zip(output, received, strict=True):
        part.detach().copy_(scratch)


def _scatter_by_backend(
    output: torch.Tensor, tensor: Tensors, op: Operation, call: BoundedCall
) -> None:
    state = call.state
    # gloo's own reduce_scatter also reduces a copy of all parts, and ignores timeouts of a wait.
    if uses_gloo(state, output):
        whole = torch.cat(list(_split_by_rank(tensor, state)))
        wait_for_works([start_all_reduce(whole, op, state)], call)
        output.copy_(whole.view(len(state.ranks), -1)[state.group.rank()].view(output.shape))
        return
    options = dist.ReduceScatterOptions()
    options.reduceOp = as_reduce_op(op)
    scratch = torch.empty_like(output)
    if isinstance(tensor, torch.Tensor):
        # reduce_scatter_tensor calls it.
        work = state.group._reduce_scatter_base(scratch, tensor.detach(), options)  # noqa: SLF001
    else:
        work = state.group.reduce_scatter([scratch], [[part.detach() for part in tensor]], options)
    wait_for_works([work], call)
    output.copy_(scratch)
