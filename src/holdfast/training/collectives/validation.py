"""Why a collective refuses a tensor, in one sentence that is the same on every rank."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.distributed as dist

from holdfast.core.errors import InvalidValue
from holdfast.training.collectives.call_text import dtype_name, reduce_op_name
from holdfast.training.collectives.groups.group_info import GroupState
from holdfast.training.collectives.reduction import FOLDED_DTYPES, Operation

_BITWISE = (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)
#: What gloo reduces (torch 2.13); it moves the other dtypes but cannot reduce them.
_GLOO_REDUCES = FOLDED_DTYPES | {torch.bool, torch.complex64, torch.complex128}


def find_refusal(
    tensor: torch.Tensor, state: GroupState | None = None, op: Operation | None = None
) -> str:
    """Return why the group cannot change the tensor in place; empty if it can.

    ``op`` is set if the tensor is to be reduced.
    """
    if tensor.layout is not torch.strided:
        return "the tensor is sparse; reduce its values, or a dense copy"
    if tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled():
        return "the tensor requires a gradient, which would ignore the call; pass tensor.detach()"
    if state is None:
        return ""
    device = tensor.device.type
    backend = state.backend_for(device)
    if not backend:
        return (
            f"group {state.name!r} has no backend for {device}; move the tensor to another device"
        )
    return _find_backend_refusal(backend, tensor.dtype, op) if op is not None else ""


def check_alone(name: str, refusal: str) -> None:
    """Raise InvalidValue if a process without peers would refuse the call ``name``."""
    if refusal:
        raise InvalidValue(name, why=refusal)


def find_chunk_refusal(chunk: int | str | None, window: int) -> str:
    """Return why ``chunk`` or ``window`` is invalid; empty if both are valid."""
    if chunk not in ("auto", None) and not (isinstance(chunk, int) and chunk >= 1):
        return f"chunk={chunk!r} must be a positive number of elements, 'auto' or None"
    return "" if window >= 1 else f"window={window} must be at least 1"


@lru_cache(maxsize=1024)
def _find_backend_refusal(backend: str, dtype: torch.dtype, op: Operation) -> str:
    """Return why the backend cannot reduce the dtype; the errors of others than gloo are clear."""
    if backend != "gloo":
        return ""
    name = reduce_op_name(op)
    is_inexact = dtype.is_floating_point or dtype.is_complex
    if dtype not in _GLOO_REDUCES:
        return f"gloo does not reduce {dtype_name(dtype)}; convert the tensor"
    if dtype.is_complex and op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        return f"{name} is undefined for complex numbers; reduce torch.view_as_real(tensor)"
    if op in _BITWISE and is_inexact:
        return f"{name} needs integers, and the tensor is of {dtype_name(dtype)}"
    if op == dist.ReduceOp.AVG and not is_inexact:
        return f"AVG needs a floating-point dtype; convert the tensor of {dtype_name(dtype)}"
    return ""
