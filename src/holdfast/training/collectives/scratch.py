"""Scratch tensors for collectives, so that a pending operation never writes to a caller's tensor.

A call that times out leaves its operation pending in the backend, which completes it when the late
rank enters: gloo cannot cancel it, except by closing all connections of the group. So the backend
gets a scratch tensor, and the calling thread copies the result once the operation has completed. A
call that raises copies nothing any more.

A scratch tensor serves one operation, which holds a reference to it while pending, so that its
memory cannot be reused earlier. Only that of a large call in one piece is kept for the next one:
new memory costs a page fault per page, and malloc keeps no freed blocks of more than 32 MiB.
(Keeping all sizes was measured and saved nothing.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist

from holdfast.training.collectives.groups.arrivals import BoundedCall
from holdfast.training.collectives.groups.group_info import GroupState

#: A started operation, the tensor on which it runs, and the one to which its result is copied;
#: nothing is copied if both are the same object.
PendingCopy = tuple[dist.Work, torch.Tensor, torch.Tensor]

#: glibc's malloc maps larger blocks anew and unmaps them when they are freed.
_KEPT_BY_MALLOC_BYTES = 32 << 20


class ReusableScratch:
    """Key in ``GroupState.cache`` of the scratch tensor of the group's last large call."""


def scratch_copy(tensor: torch.Tensor, call: BoundedCall) -> torch.Tensor:
    """Return a copy to reduce in place, or the tensor itself if the call owns it."""
    return tensor if call.owns_tensor else tensor.clone()


def reusable_scratch_copy(flat: torch.Tensor, call: BoundedCall) -> torch.Tensor:
    """Return a scratch copy, in the group's kept memory if it fits; pair with `keep_scratch`."""
    # A call that raises does not put it back.
    scratch: torch.Tensor | None = call.state.cache.pop(ReusableScratch, None)
    if (
        call.owns_tensor
        or scratch is None
        or (scratch.shape, scratch.dtype, scratch.device) != (flat.shape, flat.dtype, flat.device)
    ):
        return scratch_copy(flat, call)
    return scratch.copy_(flat)


def keep_scratch(scratch: torch.Tensor, call: BoundedCall) -> None:
    """Keep the scratch tensor of a completed operation for the next one, if that saves time."""
    is_large = scratch.nbytes > _KEPT_BY_MALLOC_BYTES and scratch.device.type == "cpu"
    # Inference tensors cannot be written to outside inference mode.
    if is_large and not call.owns_tensor and not scratch.is_inference():
        call.state.cache[ReusableScratch] = scratch


def drop_scratch(state: GroupState) -> None:
    """Free the group's kept memory."""
    state.cache.pop(ReusableScratch, None)


def copy_back_in_order(started: Iterable[PendingCopy], window: int) -> Iterator[dist.Work]:
    """Yield the works in order, ``window`` of them pending, and copy each result on completion.

    A work has completed when the next one is requested, as
    :func:`holdfast.training.collectives.bounded_wait.wait_for_works` does. ``started`` starts an
    operation when its next item is requested.
    """
    pending: deque[PendingCopy] = deque()
    for item in started:
        pending.append(item)
        if len(pending) == window:
            yield from _complete_first(pending)
    while pending:
        yield from _complete_first(pending)


def _complete_first(pending: deque[PendingCopy]) -> Iterator[dist.Work]:
    work, scratch, target = pending.popleft()
    yield work
    copy_back(scratch, target)


def copy_back(scratch: torch.Tensor, target: torch.Tensor) -> None:
    """Copy the result of a completed operation to its target, unless it ran on that itself."""
    if scratch is not target:
        target.copy_(scratch)
