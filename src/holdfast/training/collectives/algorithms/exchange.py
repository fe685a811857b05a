"""Reduce small tensors over links with latency: every rank sends to all others and reduces locally.

gloo's all-reduce is a ring of 2 (n - 1) messages that wait for each other. Here no message waits
for another, so the latency is paid once for any number of ranks. The price is traffic: each rank
sends its tensor n times.
"""

from __future__ import annotations

import torch

from holdfast.training.collectives.backend_calls import start_all_to_all
from holdfast.training.collectives.bounded_wait import wait_for_works
from holdfast.training.collectives.groups.arrivals import BoundedCall
from holdfast.training.collectives.reduction import Operation, fold


def reduce_by_exchange(flat: torch.Tensor, op: Operation, call: BoundedCall) -> None:
    """Reduce a contiguous one-dimensional tensor in place; all ranks get the same bits.

    Supports what :func:`holdfast.training.collectives.reduction.can_fold` does. Needs
    memory for two tensors per rank.

    Raises:
        CollectiveTimeout, CollectiveFailed: as
            :func:`holdfast.training.collectives.bounded_wait.wait_for_works`.
    """
    size = len(call.state.ranks)
    if size == 1:
        return
    received = flat.new_empty(size * flat.numel())
    wait_for_works([start_all_to_all(received, flat.repeat(size), call.state)], call)
    fold(received.view(size, -1).unbind(), op, flat)
