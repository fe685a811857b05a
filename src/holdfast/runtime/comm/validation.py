"""What a collective does not take, in one sentence that is the same on every rank that gives it."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.distributed as dist

from holdfast.runtime.comm.folding import Operation
from holdfast.runtime.comm.groups import GroupState

_WHOLE = (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)
#: What gloo reduces (torch 2.13); the others move, and are not added up.
_GLOO_REDUCES = frozenset({
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64,
    torch.bool, torch.complex64, torch.complex128,
})  # fmt: skip


def wrong_with(tensor: torch.Tensor, state: GroupState | None = None, op: Operation | None = None) -> str:
    """Why this group cannot change the tensor in place; empty where it can. ``op``: where it is to be reduced."""
    if tensor.layout is not torch.strided:
        return "it is sparse; reduce its values, or a dense copy"
    if tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled():
        return "it requires a gradient, which would not know of the reduction; give tensor.detach()"
    if state is None:
        return ""
    backend = state.backend_for(tensor.device.type)
    if not backend:
        return f"group {state.name!r} has no backend for tensors on {tensor.device.type}; move it to another device"
    return _unknown_to(backend, tensor.dtype, op) if op is not None else ""


@lru_cache(maxsize=1024)
def _unknown_to(backend: str, dtype: torch.dtype, op: Operation) -> str:
    """Why the backend does not reduce such numbers. Of other backends than gloo their own errors are as clear."""
    if backend != "gloo":
        return ""
    name = str(op).rpartition(".")[2]
    if dtype not in _GLOO_REDUCES:
        return f"gloo does not reduce {str(dtype)[6:]}; convert it"
    if dtype.is_complex and op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        return f"complex numbers have no {name} over ranks; reduce torch.view_as_real of it"
    if op in _WHOLE and (dtype.is_floating_point or dtype.is_complex):
        return f"{name} wants whole numbers, and it is of {str(dtype)[6:]}"
    if op == dist.ReduceOp.AVG and not (dtype.is_floating_point or dtype.is_complex):
        return f"an average of {str(dtype)[6:]} is none; convert it to a floating-point dtype"
    return ""
