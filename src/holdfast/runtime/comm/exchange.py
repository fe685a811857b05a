"""Small tensors over links with latency: every rank sends its own to all others at once, and each reduces them all.

gloo's all-reduce is a ring of 2 (n - 1) messages that wait for each other; here none waits for another, so that one
latency is paid however many ranks there are. What is paid for that is traffic: n times the tensor from each rank.
"""

from __future__ import annotations

import torch

from holdfast.runtime.comm.folding import Operation, fold
from holdfast.runtime.comm.presence import Call
from holdfast.runtime.comm.waiting import finish


def exchange(flat: torch.Tensor, op: Operation, call: Call) -> None:
    """Reduce a contiguous tensor of one axis in place; all ranks get the same bits, as all fold in one order.

    Takes what :func:`holdfast.runtime.comm.folding.folds` knows; needs twice the tensor for each rank.

    Raises:
        CollectiveTimeout, CollectiveFailed: as :func:`holdfast.runtime.comm.waiting.finish`.
    """
    size = len(call.state.ranks)
    if size == 1:
        return
    theirs = flat.new_empty(size * flat.numel())
    finish([call.state.group.alltoall_base(theirs, flat.repeat(size), [], [])], call)
    fold(theirs.view(size, -1).unbind(), op, flat)
