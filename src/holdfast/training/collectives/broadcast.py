"""Broadcast a tensor, a large one in chunks: one chunk is forwarded while the next is received."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
import torch.distributed as dist

from holdfast.core.keyword_hints import suggest_keywords
from holdfast.training.collectives.backend_calls import as_bytes, start_broadcast, uses_gloo
from holdfast.training.collectives.bounded_wait import (
    begin_call,
    wait_for_all_ranks,
    wait_for_entries,
    wait_for_works,
)
from holdfast.training.collectives.call_text import dtype_name
from holdfast.training.collectives.groups.arrivals import BoundedCall
from holdfast.training.collectives.groups.group_info import GroupState, runs_alone, state_of
from holdfast.training.collectives.scratch import PendingCopy, copy_back_in_order
from holdfast.training.collectives.validation import check_alone, find_chunk_refusal, find_refusal

#: Chunks in flight at once.
WINDOW = 4
#: gloo forwards the whole tensor from rank to rank, log2(n) times, once it has received all of it.
CHUNK_BYTES = 4 << 20


@suggest_keywords
def broadcast(
    tensor: torch.Tensor,
    src: int = 0,
    group: dist.ProcessGroup | None = None,
    *,
    timeout: float | str | None = None,
    chunk: int | Literal["auto"] | None = "auto",
    window: int = WINDOW,
) -> torch.Tensor:
    """Copy the tensor of global rank ``src`` to all ranks of ``group``, in place; return it.

    ``timeout``: as in :func:`holdfast.comm.all_reduce`. ``chunk``: elements of a chunk, of which
    ``window`` are in flight at once. None moves the tensor in one call; "auto" does so up to 4 MiB,
    and on other backends than gloo. Data in flight are received into a copy, so that nothing writes
    to the tensor after the call has raised. Any dtype; a non-contiguous tensor is copied. ``src``
    too waits until all ranks have entered the call: its data may arrive without them.

    Raises:
        InvalidValue, CollectiveMismatch, CollectiveTimeout, CollectiveFailed, GroupBroken: as
            :func:`holdfast.comm.all_reduce`.
    """
    refusal = find_chunk_refusal(chunk, window)
    if runs_alone(group):
        refusal = f"there is no rank {src}, only rank 0" if src else refusal
        check_alone("broadcast", refusal or find_refusal(tensor))
        return tensor
    state = state_of(group)
    if src not in state.ranks:
        refusal = f"rank {src} is not a member of the group; pass the global rank of a member"
    refusal = refusal or find_refusal(tensor, state)
    description = f"{tensor.numel():,} {dtype_name(tensor.dtype)} {list(tensor.shape)}"
    nbytes = tensor.numel() * tensor.element_size()
    call = begin_call(
        state,
        f"broadcast of {description} from rank {src}",
        timeout,
        nbytes=nbytes,
        refusal=refusal,
    )
    if tensor.numel() == 0:
        wait_for_all_ranks(call)
    else:
        _send(tensor, state.ranks.index(src), call, chunk, window)
    return tensor


def _send(
    tensor: torch.Tensor, root: int, call: BoundedCall, chunk: int | str | None, window: int
) -> None:
    """Copy the tensor of the rank ``root`` of the group to all others, in place."""
    state = call.state
    whole = tensor.detach().contiguous()
    is_copied = whole.data_ptr() != tensor.data_ptr()
    flat, width = whole.view(-1), 1
    if uses_gloo(state, tensor):
        flat, width = as_bytes(whole), whole.element_size()
    length = _chunk_length(whole, chunk, state)
    chunks = [flat] if length is None else flat.split(length * width)
    receives_in_place = root != state.group.rank() and not is_copied
    wait_for_entries(call)

    def start_all() -> Iterator[PendingCopy]:
        for each in chunks:
            scratch = torch.empty_like(each) if receives_in_place else each
            yield start_broadcast(scratch, root, state), scratch, each

    wait_for_works(copy_back_in_order(start_all(), window), call)
    if is_copied:
        tensor.detach().copy_(whole)


def _chunk_length(tensor: torch.Tensor, chunk: int | str | None, state: GroupState) -> int | None:
    """Return the elements of a chunk, None for all. Other backends split by themselves."""
    if chunk != "auto":
        return chunk if isinstance(chunk, int) and chunk < tensor.numel() else None
    needs_chunks = uses_gloo(state, tensor) and tensor.nbytes > CHUNK_BYTES
    return max(1, CHUNK_BYTES // tensor.element_size()) if needs_chunks else None
