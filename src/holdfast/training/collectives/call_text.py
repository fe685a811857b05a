"""Texts of operations, dtypes and errors in signatures of calls, messages and logs."""

from __future__ import annotations

import torch
import torch.distributed as dist

from holdfast.training.collectives.reduction import Operation


def dtype_name(dtype: torch.dtype) -> str:
    """Return ``float32`` for torch.float32."""
    return str(dtype)[len("torch.") :]


def reduce_op_name(op: Operation) -> str:
    """Return ``MAX`` for ReduceOp.MAX."""
    return str(op).rpartition(".")[2]


def operation_name(name: str, op: Operation) -> str:
    """Return ``all_reduce (MAX)``; only ``all_reduce`` for a sum."""
    return name if op == dist.ReduceOp.SUM else f"{name} ({reduce_op_name(op)})"


def first_line(error: BaseException, limit: int = 300) -> str:
    """Return the first line of an error, or its type if it has no text."""
    return str(error).strip().partition("\n")[0][:limit] or type(error).__name__
