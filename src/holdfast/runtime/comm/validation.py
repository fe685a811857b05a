"""What a collective does not take, in one sentence that is the same on every rank that gives it."""

from __future__ import annotations

import torch

from holdfast.errors import BadValue


def wrong_with(tensor: torch.Tensor, timeout: float = 1.0) -> str:
    """Why no collective can change this tensor in place within ``timeout`` seconds; empty where it can."""
    if tensor.layout is not torch.strided:
        return "it is sparse; reduce its values, or a dense copy"
    if tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled():
        return "it requires a gradient, which would not know of the reduction; give tensor.detach()"
    if not timeout > 0:
        return f"its time limit is {timeout} s; give a positive one"
    return ""


def check(tensor: torch.Tensor, operation: str, timeout: float) -> None:
    """Refuse what ``operation`` (``all_reduce``) cannot move in place.

    Raises:
        BadValue: the tensor is sparse or would keep a gradient that knows of nothing, or the limit is no time.
    """
    why = ""
    if tensor.layout is not torch.strided:
        why = "it is sparse; reduce its values, or a dense copy"
    elif tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled():
        why = "it requires a gradient, which would not know of the reduction; give tensor.detach()"
    elif not timeout > 0:
        why = f"its time limit is {timeout} s; give a positive one"
    if why:
        raise BadValue(f"a tensor was given to {operation}", why=why)
