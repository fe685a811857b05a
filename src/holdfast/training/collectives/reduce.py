"""All-reduce of one tensor with a timeout, by the algorithm that is fastest on this link."""

from __future__ import annotations

import logging
from functools import lru_cache
from math import inf
from typing import Literal, Never

import torch
import torch.distributed as dist

from holdfast.core.errors import (
    CollectiveFailed,
    CollectiveMismatch,
    CollectiveTimeout,
    GroupBroken,
)
from holdfast.core.keyword_hints import raise_unknown_keyword
from holdfast.training.collectives import algorithm_choice
from holdfast.training.collectives.algorithms.selection import (
    CHUNK,
    WINDOW,
    reduce_as_bf16,
    reduce_in_chunks,
    reduce_in_one_call,
)
from holdfast.training.collectives.bounded_wait import (
    LEAST_SIMPLE_S,
    begin_call,
    find_simple_sum,
    sum_simply,
    wait_for_all_ranks,
)
from holdfast.training.collectives.call_text import dtype_name, operation_name
from holdfast.training.collectives.groups.arrivals import BoundedCall
from holdfast.training.collectives.groups.group_info import GroupState, runs_alone, state_of
from holdfast.training.collectives.reduction import Operation
from holdfast.training.collectives.timeouts import MIN_MEASURED_BYTES
from holdfast.training.collectives.validation import check_alone, find_chunk_refusal, find_refusal

#: Kinds of tensors for which a group caches the signature of their sum.
_MAX_KINDS = 4096

_SUM, _NUMBERS, _member = dist.ReduceOp.SUM, (int, float), dist.GroupMember

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
    **unknown: Never,
) -> torch.Tensor:
    """Reduce ``tensor`` over the ranks of ``group``, in place; return it.

    ``timeout``: seconds, or ``"90s"``; None leaves it to the policy
    (:mod:`holdfast.training.collectives.timeouts`). ``chunk``: ``"auto"`` measures on the first
    calls of each size which algorithm is fastest
    (:mod:`holdfast.training.collectives.algorithm_choice`), None makes one call of the backend, a
    number is the elements of a chunk, of which ``window`` are in flight at once. ``wire="bf16"``
    sends float32 and float64 as bfloat16, in chunks: at most half the traffic, 8 bits of precision.

    The backend works on a copy (of the whole tensor for one call, else of the chunks in flight), so
    that nothing writes to the tensor after the call has raised. A call that raised leaves the
    tensor unchanged, or with some of its chunks reduced.

    All ranks get the same bits. They equal those of ``torch.distributed.all_reduce`` if nothing is
    rounded, or there are two ranks, or ``chunk`` is None.

    Raises:
        InvalidValue: the tensor cannot be reduced, or there is no such group.
        CollectiveMismatch: calls differ between ranks, or a rank refused its own; on all ranks.
        CollectiveTimeout: the timeout expired; names the missing ranks. The group is broken.
        CollectiveFailed: a peer is gone.
        GroupBroken: an earlier call in this group timed out or failed.
    """
    if unknown:
        raise_unknown_keyword(all_reduce, "all_reduce", unknown)
    if group is None and (group := _member.WORLD) is None and runs_alone(None):
        check_alone("all_reduce", find_refusal(tensor) or find_chunk_refusal(chunk, window))
        return tensor
    state = state_of(group)
    kind = (tensor.shape, tensor.dtype, tensor.device, tensor.layout)
    simple = state.simple_sums.get(kind) if op is _SUM and wire is None else None
    if (
        simple is not None
        and (chunk is None or (chunk == "auto" and simple.is_automatic))
        and (timeout is None or (type(timeout) in _NUMBERS and LEAST_SIMPLE_S <= timeout < inf))  # type: ignore[operator]
        and not tensor.requires_grad
        and tensor.is_contiguous()
    ):
        sum_simply(simple, state, group, tensor, timeout)  # type: ignore[arg-type]
        return tensor
    signature = state.sum_signatures.get(kind) if op is _SUM else None
    refusal, nbytes = "", tensor.numel() * tensor.element_size()  # sparse tensors have no nbytes
    if signature is None or tensor.requires_grad:
        signature = _signature(op, tensor.shape, tensor.dtype)
        refusal = find_refusal(tensor, state, op)
        if op is _SUM and not refusal and len(state.sum_signatures) < _MAX_KINDS:
            state.sum_signatures[kind] = signature
    if wire is not None or chunk != "auto" or window != WINDOW:
        refusal = refusal or find_chunk_refusal(chunk, window) or _find_wire_refusal(tensor, wire)
    call = begin_call(state, signature, timeout, nbytes=nbytes, refusal=refusal)
    if tensor.numel() == 0:
        wait_for_all_ranks(call)
        return tensor
    plain = tensor.detach() if tensor.requires_grad else tensor
    flat = plain if plain.dim() == 1 and plain.is_contiguous() else plain.contiguous().view(-1)
    call.owns_tensor = flat is not plain and flat.data_ptr() != plain.data_ptr()
    _reduce(flat, op, call, chunk, window, wire)
    if call.owns_tensor:
        plain.copy_(flat.view(tensor.shape))
    if op is _SUM and nbytes < MIN_MEASURED_BYTES:
        _keep_simple_sum(tensor, signature, state, is_one_call=chunk is None)
    return tensor


def _keep_simple_sum(
    tensor: torch.Tensor, signature: str, state: GroupState, *, is_one_call: bool
) -> None:
    """Keep what a later sum of such a tensor needs, if that is one call of the backend."""
    kind = (tensor.shape, tensor.dtype, tensor.device, tensor.layout)
    is_automatic = algorithm_choice.is_one_call(state, tensor.nbytes, tensor.dtype)
    if kind in state.sum_signatures and (is_one_call or is_automatic):
        found = find_simple_sum(state, signature, tensor, is_automatic=is_automatic)
        state.simple_sums[kind] = found


def _reduce(
    flat: torch.Tensor,
    op: Operation,
    call: BoundedCall,
    chunk: int | str | None,
    window: int,
    wire: str | None,
) -> None:
    if wire is not None:
        length = CHUNK if chunk in ("auto", None) else int(chunk)
        reduce_as_bf16(flat, op, call, chunk=length, window=window)
    elif chunk == "auto":
        algorithm_choice.reduce_by_fastest(flat, op, call)
    elif chunk is None:
        reduce_in_one_call(flat, op, call)
    else:
        reduce_in_chunks(flat, op, call, chunk=int(chunk), window=window)


def safe_all_reduce(tensor: torch.Tensor, *arguments: object, **options: object) -> bool:
    """Call :func:`all_reduce`; on failure log a warning and return False instead of raising."""
    try:
        all_reduce(tensor, *arguments, **options)  # type: ignore[arg-type]
    except (CollectiveMismatch, CollectiveTimeout, CollectiveFailed, GroupBroken) as error:
        _log.warning("%s", error)
        return False
    return True


def _find_wire_refusal(tensor: torch.Tensor, wire: str | None) -> str:
    if wire not in ("bf16", None):
        return f"wire={wire!r} must be 'bf16' or None"
    if wire and tensor.dtype not in (torch.float32, torch.float64):
        return (
            f"wire='bf16' needs float32 or float64, and the tensor is of {dtype_name(tensor.dtype)}"
        )
    return ""


@lru_cache(maxsize=1024)
def _signature(op: Operation, shape: torch.Size, dtype: torch.dtype) -> str:
    """Return ``all_reduce (MAX) of 6 float32 [2, 3]``; without the op of a sum and a flat shape."""
    shown_shape = f" {list(shape)}" if len(shape) > 1 else ""
    return (
        f"{operation_name('all_reduce', op)} of {shape.numel():,} {dtype_name(dtype)}{shown_shape}"
    )
