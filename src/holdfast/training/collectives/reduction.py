"""Reduce all ranks' tensors on one rank, in rank order: equal inputs give equal bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

Operation = dist.ReduceOp | dist.ReduceOp.RedOpType

_FUNCTIONS: tuple[tuple[dist.ReduceOp.RedOpType, Callable[..., torch.Tensor]], ...] = (
    (dist.ReduceOp.SUM, torch.add),
    (dist.ReduceOp.AVG, torch.add),
    (dist.ReduceOp.PRODUCT, torch.mul),
    (dist.ReduceOp.MIN, torch.minimum),
    (dist.ReduceOp.MAX, torch.maximum),
)
#: A subset of what gloo reduces: no algorithm may accept a tensor that another refuses.
FOLDED_DTYPES = frozenset({
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8,
    torch.int32, torch.int64,
})  # fmt: skip


def can_fold(op: Operation, dtype: torch.dtype) -> bool:
    """Return whether :func:`fold` supports the operation for this dtype; AVG needs floats."""
    is_known = dtype in FOLDED_DTYPES and any(op == kind for kind, _ in _FUNCTIONS)
    return is_known and (op != dist.ReduceOp.AVG or dtype.is_floating_point)


def fold(parts: Sequence[torch.Tensor], op: Operation, out: torch.Tensor) -> None:
    """Reduce two or more tensors of one shape into ``out``, rounded after each as gloo does.

    ``out`` may be the first of them, and none of the others.
    """
    function = next(function for kind, function in _FUNCTIONS if op == kind)
    function(parts[0], parts[1], out=out)
    for part in parts[2:]:
        function(out, part, out=out)
    if op == dist.ReduceOp.AVG:
        out.div_(len(parts))
