"""Collectives of ranks on one host through shared memory, instead of gloo's sockets.

To reduce, each rank copies its tensor into its area, reduces one slice over all areas, and copies
the whole result back. A small tensor is reduced whole by every rank, which saves the second wait.
Larger tensors go through in chunks that fit the processor's caches. A tensor created by
:func:`shared_tensor` is in such memory from the start, and nothing is copied unless the call fails:
then it moves to memory of its rank alone, so that a late rank does not write to it. To gather and
to scatter, each rank copies its own data in, and its result out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from holdfast.core.errors import InternalError, InvalidValue
from holdfast.core.keyword_hints import suggest_keywords
from holdfast.training.collectives.bounded_wait import begin_call, wait_for_all_ranks
from holdfast.training.collectives.call_text import dtype_name
from holdfast.training.collectives.groups.arrivals import BoundedCall
from holdfast.training.collectives.groups.group_info import runs_alone, state_of
from holdfast.training.collectives.reduction import Operation, can_fold, fold
from holdfast.training.collectives.shared_memory.areas import (
    SharedMemory,
    SharedViews,
    shared_memory_of,
)

#: Up to this size over all ranks, each reduces the whole instead of waiting twice.
_WHOLE_BYTES = 128 << 10
#: Elements of the blocks of a shared tensor, which are still in a cache when written back.
_BLOCK = 1 << 15
#: Alignment of each rank's part of an area.
_PART_BYTES = 64


def can_reduce(flat: torch.Tensor, op: Operation) -> bool:
    """Return whether such a tensor can be reduced in memory, if the group has some."""
    return flat.device.type == "cpu" and can_fold(op, flat.dtype)


def is_available(call: BoundedCall) -> bool:
    """Return whether the group's ranks share memory; the first request creates it.

    Raises:
        CollectiveTimeout: it is the first request, and ranks did not enter the call; names them.
    """
    return shared_memory_of(call) is not None


def reduce_in_memory(flat: torch.Tensor, op: Operation, call: BoundedCall) -> None:
    """Reduce a contiguous one-dimensional tensor in place; all ranks get the same bits.

    Requires :func:`is_available`.

    Raises:
        InvalidValue: it is in a shared tensor only on some ranks; raised on all.
        CollectiveTimeout: the call's timeout expired; names the missing ranks.
        CollectiveFailed: another rank's process has ended; names it.
        GroupBroken: another rank aborted the call.
    """
    with _participate(call) as memory:
        shared = memory.find_views(flat) if flat.nbytes * memory.ranks > _WHOLE_BYTES else None
        if shared is not None:
            try:
                _reduce_in_place(memory, shared, op, call)
            except InvalidValue:
                raise
            except BaseException:
                memory.detach(shared)
                raise
        else:
            for chunk in flat.split(memory.area_bytes // flat.element_size()):
                _reduce_through_areas(memory, chunk, op, call)


def gather_in_memory(parts: Sequence[torch.Tensor], call: BoundedCall) -> None:
    """Fill the parts of the other ranks from their memory; this rank's own part is read.

    The parts are bytes, of one size. Requires :func:`is_available`.

    Raises:
        CollectiveTimeout, CollectiveFailed, GroupBroken: as :func:`reduce_in_memory`.
    """
    with _participate(call) as memory:
        for chunks in zip(*(part.split(memory.area_bytes) for part in parts), strict=True):
            areas = memory.next_areas(chunks[0])
            areas[memory.rank].copy_(chunks[memory.rank])
            memory.enter(0, call)
            for rank, (area, chunk) in enumerate(zip(areas, chunks, strict=True)):
                if rank != memory.rank:
                    chunk.copy_(area)


def scatter_in_memory(
    out: torch.Tensor, parts: Sequence[torch.Tensor], op: Operation, call: BoundedCall
) -> None:
    """Reduce this rank's part of all ranks into ``out``, in rank order; flat tensors of one size.

    Requires :func:`is_available`.

    Raises:
        CollectiveTimeout, CollectiveFailed, GroupBroken: as :func:`reduce_in_memory`.
    """
    with _participate(call) as memory:
        part_bytes = memory.area_bytes // (memory.ranks * _PART_BYTES) * _PART_BYTES
        length = part_bytes // out.element_size()
        split_parts = (part.split(length) for part in parts)
        for target, *chunks in zip(out.split(length), *split_parts, strict=True):
            areas = memory.next_areas(target, memory.ranks)
            rows = [area.view(memory.ranks, -1) for area in areas]
            for row, chunk in zip(rows[memory.rank], chunks, strict=True):
                row.copy_(chunk)
            memory.enter(0, call)
            fold([row[memory.rank] for row in rows], op, target)


@contextmanager
def _participate(call: BoundedCall) -> Iterator[SharedMemory]:
    """Yield the group's memory; if the call does not complete, notify the other ranks."""
    memory = shared_memory_of(call)
    if memory is None:
        raise InternalError(f"group {call.state.name!r} shares no memory")
    try:
        yield memory
    except InvalidValue:
        raise
    except BaseException:
        memory.abort(call)
        raise


@suggest_keywords
def shared_tensor(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    group: dist.ProcessGroup | None = None,
    *,
    timeout: float | str | None = None,
) -> torch.Tensor:
    """Return zeros in memory that the group's ranks on this host share, to be reduced in place.

    An all_reduce of it, or of the same contiguous view of it on all ranks, copies nothing. All
    ranks create it, and all pass it; the others write to it only while it is reduced. It is an
    ordinary tensor if the ranks share no memory. After a failed call its contents are unspecified,
    and it is an ordinary tensor: no other rank writes to it, and it needs its size in memory again
    until no view of it is left.

    Raises:
        CollectiveMismatch, CollectiveTimeout, GroupBroken: as :func:`holdfast.comm.all_reduce`.
    """
    size = torch.Size(shape)
    if runs_alone(group):
        return torch.zeros(size, dtype=dtype)
    state = state_of(group)
    signature = f"shared_tensor of {size.numel():,} {dtype_name(dtype)} {list(size)}"
    call = begin_call(state, signature, timeout)
    memory = shared_memory_of(call)
    if memory is None or not size.numel() or dtype.is_complex or dtype is torch.bool:
        wait_for_all_ranks(call)
        return torch.zeros(size, dtype=dtype)
    tensor = memory.allocate_tensor(size.numel() * dtype.itemsize, call)
    return torch.zeros(size, dtype=dtype) if tensor is None else tensor.view(dtype).view(size)


# ---- the steps


def _reduce_through_areas(
    memory: SharedMemory, chunk: torch.Tensor, op: Operation, call: BoundedCall
) -> None:
    areas = memory.next_areas(chunk)
    areas[memory.rank].copy_(chunk)
    memory.enter(0, call)
    if chunk.nbytes * memory.ranks <= _WHOLE_BYTES:
        fold(areas, op, chunk)
        return
    own_slice = memory.slice_of(chunk)
    # No other rank touches this slice of the areas until all have reduced theirs.
    slices = [area[own_slice] for area in areas]
    fold(slices, op, slices[0])
    memory.finish_slice(call)
    chunk.copy_(areas[0])


def _reduce_in_place(
    memory: SharedMemory, shared: SharedViews, op: Operation, call: BoundedCall
) -> None:
    memory.step += 1
    memory.enter(shared.offset, call)
    own_slice = memory.slice_of(shared.views[0])
    for blocks in zip(*(view[own_slice].split(_BLOCK) for view in shared.views), strict=True):
        fold(blocks, op, blocks[0])
        for block in blocks[1:]:
            block.copy_(blocks[0])
    memory.finish_slice(call)
    # A rank that aborted in this step may have changed its tensor while it was read here.
    memory.check_aborted_ranks(call)
