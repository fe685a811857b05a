"""Sums over ranks that end: one tensor of any size, in the way that is fastest on this link."""

from __future__ import annotations

import logging
from functools import lru_cache
from math import inf
from typing import Literal

import torch
import torch.distributed as dist

from holdfast.errors import CollectiveFailed, CollectiveMismatch, CollectiveTimeout, GroupBroken
from holdfast.runtime.comm import choice
from holdfast.runtime.comm.folding import Operation
from holdfast.runtime.comm.groups import state_of
from holdfast.runtime.comm.limits import LEAST_MEASURED_BYTES
from holdfast.runtime.comm.presence import Call
from holdfast.runtime.comm.validation import wrong_with
from holdfast.runtime.comm.waiting import at_once, begin, meet
from holdfast.runtime.comm.ways import PIECE, WINDOW, in_pieces, narrowed, whole

#: Kinds of tensors of which a group remembers that it sums them.
_MOST_KINDS = 4096

_SUM, _NUMBERS = dist.ReduceOp.SUM, (int, float)

_log = logging.getLogger("holdfast.comm")


def all_reduce(
    tensor: torch.Tensor,
    op: Operation = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    *,
    timeout: float | str | None = None,
    chunk: int | Literal["auto"] | None = "auto",
    window: int = WINDOW,
    wire: Literal["bf16"] | None = None,
) -> torch.Tensor:
    """Reduce ``tensor`` over the ranks of ``group``, in place; it is returned.

    ``timeout``: seconds, or ``"90s"``; None leaves it to the policy (:mod:`holdfast.runtime.comm.limits`). ``chunk``:
    ``"auto"`` tries out on the first calls of each size what is fastest here (:mod:`holdfast.runtime.comm.choice`),
    None makes one call of the backend, a number is the elements of a piece, of which ``window`` are under way at once.
    ``wire="bf16"`` sends float32 and float64 as bfloat16, in pieces: half the traffic or less, and 8 bits of precision.
    All ranks get the same bits; to the last bit they are those of ``torch.distributed.all_reduce`` where that rounds
    nothing, or there are two ranks, or ``chunk`` is None.

    Raises:
        BadValue: the tensor cannot be reduced, or there is no such group.
        CollectiveMismatch: the ranks do not reduce the same, or one of them cannot; all of them are told.
        CollectiveTimeout: it took longer; the ranks that did not come are named, and the group is not used again.
        CollectiveFailed: a peer is gone.
        GroupBroken: an earlier call in this group timed out or failed.
    """
    state = state_of(group)
    # Looked up in one go: after a collective the caches are cold, and what is touched counts, not what is computed.
    kind = (tensor.shape, tensor.dtype, tensor.device, tensor.layout)
    words = state.sums.get(kind) if op is _SUM else None
    wrong, nbytes = "", tensor.numel() * tensor.element_size()  # a sparse one has no nbytes
    if words is None or tensor.requires_grad:
        words, wrong = _words(op, tensor.shape, tensor.dtype), wrong_with(tensor, state, op)
        if op is _SUM and not wrong and len(state.sums) < _MOST_KINDS:
            state.sums[kind] = words
    elif (
        (chunk is None or (chunk == "auto" and choice.is_plain(state, nbytes, tensor.dtype)))
        and wire is None
        and (timeout is None or (type(timeout) in _NUMBERS and 1 <= timeout < inf))  # type: ignore[operator]
        and 0 < nbytes < LEAST_MEASURED_BYTES
        and tensor.is_contiguous()
        and at_once(state, words, timeout, nbytes, tensor)
    ):
        return tensor
    if wire is not None or chunk != "auto" or window != WINDOW:
        wrong = wrong or _wrong_pieces(tensor, chunk, window, wire)
    call = begin(state, words, timeout, nbytes=nbytes, wrong=wrong)
    if tensor.numel() == 0:
        meet(call)
        return tensor
    plain = tensor.detach() if tensor.requires_grad else tensor
    flat = plain if plain.dim() == 1 and plain.is_contiguous() else plain.contiguous().view(-1)
    _reduce(flat, op, call, chunk, window, wire)
    if flat is not plain and flat.data_ptr() != plain.data_ptr():
        plain.copy_(flat.view(tensor.shape))
    return tensor


def _reduce(
    flat: torch.Tensor, op: Operation, call: Call, chunk: int | str | None, window: int, wire: str | None
) -> None:
    if wire is not None:
        narrowed(flat, op, call, chunk=PIECE if chunk in ("auto", None) else int(chunk), window=window)
    elif chunk == "auto":
        choice.reduce(flat, op, call)
    elif chunk is None:
        whole(flat, op, call)
    else:
        in_pieces(flat, op, call, chunk=int(chunk), window=window)


def safe_all_reduce(tensor: torch.Tensor, *arguments: object, **options: object) -> bool:
    """:func:`all_reduce` for those who want no exception: False, and a line in the log, where it failed."""
    try:
        all_reduce(tensor, *arguments, **options)  # type: ignore[arg-type]
    except (CollectiveMismatch, CollectiveTimeout, CollectiveFailed, GroupBroken) as error:
        _log.warning("%s", error)
        return False
    return True


def _wrong_pieces(tensor: torch.Tensor, chunk: int | str | None, window: int, wire: str | None) -> str:
    if (chunk not in ("auto", None) and not (isinstance(chunk, int) and chunk >= 1)) or window < 1:
        return f"pieces of {chunk} elements, {window} at once, make no sense"
    if wire not in ("bf16", None):
        return f"nothing is known of {wire!r} on the wire; it may be 'bf16'"
    if wire and tensor.dtype not in (torch.float32, torch.float64):
        return f"{tensor.dtype} is not made narrower; only float32 and float64 are"
    return ""


@lru_cache(maxsize=1024)
def _words(op: Operation, shape: torch.Size, dtype: torch.dtype) -> str:
    """``all_reduce of 467,019,003 float32``; the operation where it is no sum, the shape where it has several parts."""
    name = "all_reduce" if op == dist.ReduceOp.SUM else f"all_reduce ({str(op).rpartition('.')[2]})"
    several = f" {list(shape)}" if len(shape) > 1 else ""
    return f"{name} of {shape.numel():,} {str(dtype).removeprefix('torch.')}{several}"
