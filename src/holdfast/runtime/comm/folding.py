"""Reduces pieces that lie on one rank, in the order of the ranks: who folds the same pieces gets the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

Operation = dist.ReduceOp | dist.ReduceOp.RedOpType

_FUNCTIONS: tuple[tuple[dist.ReduceOp.RedOpType, Callable[..., torch.Tensor]], ...] = (
    (dist.ReduceOp.SUM, torch.add), (dist.ReduceOp.AVG, torch.add), (dist.ReduceOp.PRODUCT, torch.mul),
    (dist.ReduceOp.MIN, torch.minimum), (dist.ReduceOp.MAX, torch.maximum),
)  # fmt: skip
#: What gloo reduces as well: a tensor is not to be taken by one road and refused by another.
_DTYPES = frozenset({
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64,
})  # fmt: skip


def folds(op: Operation, dtype: torch.dtype) -> bool:
    """Whether :func:`fold` knows the operation for tensors of this dtype. An average is one of floating point."""
    known = any(op == kind for kind, _ in _FUNCTIONS)
    return known and dtype in _DTYPES and (op != dist.ReduceOp.AVG or dtype.is_floating_point)


def fold(pieces: Sequence[torch.Tensor], op: Operation, out: torch.Tensor) -> None:
    """Reduce at least two pieces of one shape into ``out``, each rounded to its dtype as gloo rounds.

    ``out`` may be the first piece, and none of the others.
    """
    function = next(function for kind, function in _FUNCTIONS if op == kind)
    function(pieces[0], pieces[1], out=out)
    for piece in pieces[2:]:
        function(out, piece, out=out)
    if op == dist.ReduceOp.AVG:
        out.div_(len(pieces))
