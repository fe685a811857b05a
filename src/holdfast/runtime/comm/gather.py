"""All ranks' tensors for all, and sums of which each rank gets its part: on gloo without torch's copies.

torch's all_gather on gloo gathers into a flat buffer of its own and copies it out, and its reduce_scatter reduces
everything on every rank. Here each rank's part is broadcast into the place where it belongs, and parts are sent to the
rank that reduces them; ranks of one host go through memory that they share, where that is found to be faster. (Plain
sends and receives would do as well, if waiting for one could be bounded: gloo closes all connections of the group when
such a wait times out, and `is_completed` stays False; measured with torch 2.13.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist

from holdfast.runtime.comm import choice, shared_memory
from holdfast.runtime.comm.broadcast import on_gloo, raw, start_broadcast
from holdfast.runtime.comm.folding import Operation, fold, folds
from holdfast.runtime.comm.groups import GroupState, state_of
from holdfast.runtime.comm.presence import Call
from holdfast.runtime.comm.validation import wrong_with
from holdfast.runtime.comm.waiting import begin, finish, meet

#: Parts up to this are sent to all at once where there are more than two ranks: a broadcast is handed on.
_SMALL_BYTES = 256 << 10
#: A reduce_scatter has so many pieces under way, each of at most so many bytes a rank, and in all ranks together.
_WINDOW, _PIECE_BYTES, _PIECES_BYTES = 2, 1 << 20, 16 << 20


def all_gather(
    output: torch.Tensor | Sequence[torch.Tensor],
    tensor: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    timeout: float | str | None = None,
) -> torch.Tensor | Sequence[torch.Tensor]:
    """Put the tensors of all ranks of ``group`` into ``output``, in their order.

    ``output``: one contiguous tensor with as many elements as all ranks' have together, or a list of contiguous ones,
    one for each rank; it is returned. ``tensor`` may be the part of it that is this rank's. On gloo: any dtype, and no
    memory beside the output, except for parts below 256 KiB; ranks of one host may go through memory that they share
    (some MiB), if that is faster here. ``timeout``: as :func:`holdfast.comm.all_reduce` takes it.

    Raises:
        BadValue, CollectiveMismatch, CollectiveTimeout, CollectiveFailed, GroupBroken: as
            :func:`holdfast.comm.all_reduce`.
    """
    state = state_of(group)
    wrong = _misfit(output, tensor, state) or wrong_with(tensor, state)
    call = _begin("all_gather", tensor, timeout, state, wrong)
    if tensor.numel() == 0:
        meet(call)
        return output
    given = tensor.detach()
    if not on_gloo(state, tensor):
        finish([_gathered_by_backend(output, given.contiguous(), state)], call)
        return output
    parts = _parts(output, state)
    size, rank = len(parts), state.group.rank()
    if given.nbytes <= _SMALL_BYTES and size > 2 and isinstance(output, torch.Tensor):
        everywhere = raw(given.contiguous()).repeat(size)
        finish([state.group.alltoall_base(raw(output.detach()), everywhere, [], [])], call)
        return output
    if parts[rank].data_ptr() != given.data_ptr():
        parts[rank].view(given.shape).copy_(given)
    flat = [raw(part) for part in parts]
    ways: dict[str, Callable[[], None]] = {
        "broadcasts": lambda: finish([start_broadcast(part, root, state) for root, part in enumerate(flat)], call)
    }
    if size > 1 and shared_memory.usable(call):
        ways["shared memory"] = lambda: shared_memory.gather_in_memory(flat, call)
    choice.take("all_gather", call, given.nbytes, ways)
    return output


def reduce_scatter(
    output: torch.Tensor,
    tensor: torch.Tensor | Sequence[torch.Tensor],
    op: Operation = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    *,
    timeout: float | str | None = None,
) -> torch.Tensor:
    """Reduce ``tensor`` over the ranks of ``group``, and put the part that is this rank's into ``output``.

    ``tensor``: one contiguous tensor with as many elements as all ranks' outputs, or a list of contiguous ones, one for
    each rank; it is left as it is, unless ``output`` is this rank's part of it. On gloo the ranks are folded in their
    order, in pieces; these need at most 64 MiB. ``timeout``: as :func:`holdfast.comm.all_reduce` takes it.

    Raises:
        BadValue, CollectiveMismatch, CollectiveTimeout, CollectiveFailed, GroupBroken: as
            :func:`holdfast.comm.all_reduce`.
    """
    state = state_of(group)
    wrong = _misfit(tensor, output, state) or wrong_with(output, state, op)
    if not wrong and not output.is_contiguous():
        wrong = "the output is not contiguous"
    name = "reduce_scatter" if op == dist.ReduceOp.SUM else f"reduce_scatter ({str(op).rpartition('.')[2]})"
    call = _begin(name, output, timeout, state, wrong)
    if output.numel() == 0:
        meet(call)
        return output
    if on_gloo(state, output) and folds(op, output.dtype) and len(state.ranks) > 1:
        flat, parts = output.detach().view(-1), _parts(tensor, state)
        ways: dict[str, Callable[[], None]] = {"exchange": lambda: finish(_scattered(flat, parts, op, state), call)}
        if shared_memory.usable(call):
            ways["shared memory"] = lambda: shared_memory.scatter_in_memory(flat, parts, op, call)
        choice.take("reduce_scatter", call, flat.nbytes, ways)
    else:
        finish([_scattered_by_backend(output.detach(), tensor, op, state)], call)
    return output


def _begin(name: str, part: torch.Tensor, timeout: float | str | None, state: GroupState, wrong: str) -> Call:
    words = f"{name} of {part.numel():,} {str(part.dtype)[6:]} a rank"
    moved = part.numel() * part.element_size() * len(state.ranks)
    return begin(state, words, timeout, nbytes=moved, wrong=wrong)


def _misfit(all_parts: torch.Tensor | Sequence[torch.Tensor], part: torch.Tensor, state: GroupState) -> str:
    """Why parts of the size of ``part``, one for each rank, do not make up ``all_parts``; empty where they do."""
    size = len(state.ranks)
    one = isinstance(all_parts, torch.Tensor)
    tensors = [all_parts] if isinstance(all_parts, torch.Tensor) else list(all_parts)
    wanted = part.numel() * (size if one else 1)
    if not one and len(tensors) != size:
        return f"{len(tensors)} tensors are listed for {size} ranks"
    for tensor in tensors:
        if tensor.numel() != wanted:
            return f"a tensor of {tensor.numel():,} elements was given where {size} ranks need {wanted:,}"
        if tensor.dtype != part.dtype or tensor.device != part.device:
            return "the tensors given differ in dtype or device"
        if not tensor.is_contiguous():
            return "a tensor that holds parts of several ranks is not contiguous"
        if tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled():
            return "a tensor given requires a gradient, which would not know of this; give tensor.detach()"
    return ""


def _parts(tensor: torch.Tensor | Sequence[torch.Tensor], state: GroupState) -> Sequence[torch.Tensor]:
    """What belongs to each rank of the group, flat."""
    if isinstance(tensor, torch.Tensor):
        return tensor.detach().view(len(state.ranks), -1).unbind()
    return [part.detach().view(-1) for part in tensor]


def _scattered(
    out: torch.Tensor, parts: Sequence[torch.Tensor], op: Operation, state: GroupState
) -> Iterator[dist.Work]:
    """The works of all pieces in order; when one has been waited for, it is folded, and its memory used for the next.

    Each rank sends a piece of each part to the rank that the part is for.
    """
    size = len(parts)
    length = max(1, min(_PIECE_BYTES, _PIECES_BYTES // size) // out.element_size())
    memory = [out.new_empty(2, size, min(length, out.numel())) for _ in range(min(_WINDOW, -(-out.numel() // length)))]
    under_way: deque[tuple[dist.Work, torch.Tensor, torch.Tensor]] = deque()
    for at in range(0, out.numel(), length):
        if len(under_way) == _WINDOW:
            work, theirs, target = under_way.popleft()
            yield work
            fold(theirs.unbind(), op, target)
        target = out[at : at + length]
        taken = size * target.numel()
        sent, theirs = (half.view(-1)[:taken].view(size, -1) for half in memory[at // length % _WINDOW])
        for row, part in zip(sent, parts, strict=True):
            row.copy_(part[at : at + length])
        under_way.append((state.group.alltoall_base(theirs.view(-1), sent.view(-1), [], []), theirs, target))
    for work, theirs, target in under_way:
        yield work
        fold(theirs.unbind(), op, target)


# ---- by the backend itself


def _gathered_by_backend(
    output: torch.Tensor | Sequence[torch.Tensor], tensor: torch.Tensor, state: GroupState
) -> dist.Work:
    if isinstance(output, torch.Tensor):
        return state.group._allgather_base(output.detach(), tensor)  # noqa: SLF001 - all_gather_into_tensor calls it
    return state.group.allgather([[part.detach() for part in output]], [tensor])


def _scattered_by_backend(
    output: torch.Tensor, tensor: torch.Tensor | Sequence[torch.Tensor], op: Operation, state: GroupState
) -> dist.Work:
    options = dist.ReduceScatterOptions()
    options.reduceOp = dist.ReduceOp(op) if isinstance(op, dist.ReduceOp.RedOpType) else op
    if isinstance(tensor, torch.Tensor):
        return state.group._reduce_scatter_base(output, tensor.detach(), options)  # noqa: SLF001 - as above
    return state.group.reduce_scatter([output], [[part.detach() for part in tensor]], options)
