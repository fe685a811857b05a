"""Sums over ranks that end: one tensor of any size, whole or in pieces of which several are under way."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from functools import lru_cache

import torch
import torch.distributed as dist

from holdfast.errors import CollectiveFailed, CollectiveMismatch, CollectiveTimeout, GroupBroken
from holdfast.runtime.comm.groups import GroupState, state_of
from holdfast.runtime.comm.validation import wrong_with
from holdfast.runtime.comm.waiting import begin, finish

#: Seconds; that of a training step is torch's own for NCCL.
DEFAULT_LIMIT_S = 600.0
#: Pieces under way at once.
WINDOW = 4

_log = logging.getLogger("holdfast.comm")


def all_reduce(
    tensor: torch.Tensor,
    op: dist.ReduceOp | dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    *,
    timeout: float = DEFAULT_LIMIT_S,
    chunk: int | None = None,
    window: int = WINDOW,
) -> torch.Tensor:
    """Reduce ``tensor`` over the ranks of ``group``, in place, within ``timeout`` seconds; it is returned.

    ``chunk``: elements of a piece, of which ``window`` are under way at once; None reduces the tensor in one call.
    The result is that of one call, as every element is reduced by itself.

    Raises:
        BadValue: the tensor cannot be reduced, or there is no such group.
        CollectiveTimeout: it took longer; the ranks that did not come are named, and the group is not used again.
        CollectiveFailed: a peer is gone.
        GroupBroken: an earlier call in this group timed out or failed.
    """
    state = state_of(group)
    wrong = wrong_with(tensor, timeout)
    if (chunk is not None and chunk < 1) or window < 1:
        wrong = f"pieces of {chunk} elements, {window} at once, make no sense"
    call = begin(state, _words(op, tensor.shape, tensor.dtype), timeout, wrong=wrong)
    if tensor.numel() == 0:  # the ranks meet all the same: one of them may have brought more
        finish([start(torch.zeros(1, device=state.device), op, state)], call)
        return tensor
    flat = tensor.detach() if tensor.is_contiguous() else tensor.detach().contiguous()
    if chunk is None or chunk >= tensor.numel():
        finish([start(flat, op, state)], call)
    else:
        finish(_pieces(flat.view(-1), op, state, chunk, window), call)
    if flat.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(flat)
    return tensor


@lru_cache(maxsize=1024)
def _words(op: dist.ReduceOp | dist.ReduceOp.RedOpType, shape: torch.Size, dtype: torch.dtype) -> str:
    """``all_reduce of 467,019,003 float32``; the operation where it is no sum, the shape where it has several parts."""
    name = "all_reduce" if op == dist.ReduceOp.SUM else f"all_reduce ({str(op).rpartition('.')[2]})"
    several = f" {list(shape)}" if len(shape) > 1 else ""
    return f"{name} of {shape.numel():,} {str(dtype).removeprefix('torch.')}{several}"


def safe_all_reduce(tensor: torch.Tensor, *arguments: object, **options: object) -> bool:
    """:func:`all_reduce` for those who want no exception: False, and a line in the log, where it failed."""
    try:
        all_reduce(tensor, *arguments, **options)  # type: ignore[arg-type]
    except (CollectiveMismatch, CollectiveTimeout, CollectiveFailed, GroupBroken) as error:
        _log.warning("%s", error)
        return False
    return True


def start(tensor: torch.Tensor, op: dist.ReduceOp | dist.ReduceOp.RedOpType, state: GroupState) -> dist.Work:
    """Begin to reduce a contiguous tensor in place."""
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp(op) if isinstance(op, dist.ReduceOp.RedOpType) else op
    return state.group.allreduce([tensor], options)


def _pieces(
    flat: torch.Tensor, op: dist.ReduceOp | dist.ReduceOp.RedOpType, state: GroupState, chunk: int, window: int
) -> Iterator[dist.Work]:
    """The works of all pieces in order; a piece is begun when the one ``window`` before it has been waited for."""
    under_way: deque[dist.Work] = deque()
    for piece in flat.split(chunk):
        if len(under_way) == window:
            yield under_way.popleft()
        under_way.append(start(piece, op, state))
    yield from under_way
