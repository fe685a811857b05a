"""Start one collective of the group's own backend, without torch's wrappers in Python."""

from __future__ import annotations

import torch
import torch.distributed as dist

from holdfast.training.collectives.groups.group_info import GroupState
from holdfast.training.collectives.reduction import Operation


def start_all_reduce(flat: torch.Tensor, op: Operation, state: GroupState) -> dist.Work:
    """Start to reduce a contiguous tensor in place."""
    options = SUM_OPTIONS if op is dist.ReduceOp.SUM else _all_reduce_options(op)
    return state.group.allreduce([flat], options)


def start_reduce(flat: torch.Tensor, op: Operation, root: int, state: GroupState) -> dist.Work:
    """Start to reduce a contiguous tensor to the rank ``root`` of the group."""
    options = dist.ReduceOptions()
    options.reduceOp = as_reduce_op(op)
    options.rootRank = root
    return state.group.reduce([flat], options)


def start_broadcast(tensor: torch.Tensor, root: int, state: GroupState) -> dist.Work:
    """Start to broadcast the contiguous tensor of the rank ``root`` of the group."""
    options = dist.BroadcastOptions()
    options.rootRank = root
    options.rootTensor = 0
    return state.group.broadcast([tensor], options)


def start_all_to_all(received: torch.Tensor, sent: torch.Tensor, state: GroupState) -> dist.Work:
    """Start to send an equal part of ``sent`` to each rank."""
    return state.group.alltoall_base(received, sent, [], [])


def start_all_gather(received: torch.Tensor, sent: torch.Tensor, state: GroupState) -> dist.Work:
    """Start to gather the tensors of all ranks into one."""
    # all_gather_into_tensor calls it.
    return state.group._allgather_base(received, sent)  # noqa: SLF001


def as_reduce_op(op: Operation) -> dist.ReduceOp:
    """Return the operation in the form that options take."""
    return dist.ReduceOp(op) if isinstance(op, dist.ReduceOp.RedOpType) else op


def uses_gloo(state: GroupState, tensor: torch.Tensor) -> bool:
    """Return whether gloo moves this tensor; a group may have one backend per device type."""
    return state.backend_for(tensor.device.type) == "gloo"


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a contiguous tensor: gloo supports only some dtypes."""
    return tensor.view(-1).view(torch.uint8)


def _all_reduce_options(op: Operation) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = as_reduce_op(op)
    return options


#: Created once: needed in every step.
SUM_OPTIONS = _all_reduce_options(dist.ReduceOp.SUM)
