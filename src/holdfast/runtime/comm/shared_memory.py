"""Collectives of ranks on one host through memory that they share, instead of through gloo's sockets.

To reduce, each rank copies its tensor into its area, reduces one slice over all areas, and copies the whole result out;
a small tensor is reduced whole by every rank, which saves the second wait. Larger tensors go through in pieces that fit
the processor's caches. A tensor made by :func:`shared_tensor` lies in such memory from the start: nothing is copied.
To gather and to scatter, each rank copies in what is its own, and takes out what it is to have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from holdfast.errors import BadValue, InternalError
from holdfast.runtime.comm.areas import Found, Memory, memory_of
from holdfast.runtime.comm.folding import Operation, fold, folds
from holdfast.runtime.comm.groups import state_of
from holdfast.runtime.comm.presence import Call
from holdfast.runtime.comm.waiting import begin

#: Up to this in all ranks together, each reduces the whole instead of waiting twice.
_WHOLE_BYTES = 128 << 10
#: A shared tensor is reduced in blocks of so many elements, which are in a cache when they are written back.
_BLOCK = 1 << 15
#: What is kept for each rank in an area begins at a multiple of so many bytes.
_PART_BYTES = 64


def takes(flat: torch.Tensor, op: Operation) -> bool:
    """Whether such a tensor can be reduced in memory, where the group has some."""
    return flat.device.type == "cpu" and folds(op, flat.dtype)


def usable(call: Call) -> bool:
    """Whether the group's ranks share memory; at the first question it is made, so that all of them ask in one call.

    Raises:
        CollectiveTimeout: it is the first question, and ranks did not come to the call; they are named.
    """
    return memory_of(call) is not None


def reduce_in_memory(flat: torch.Tensor, op: Operation, call: Call) -> None:
    """Reduce a contiguous tensor of one axis in place; all ranks get the same bits. Ask :func:`usable` before.

    Raises:
        BadValue: it lies in a shared tensor on some ranks, and elsewhere on others; on all ranks alike.
        CollectiveTimeout: it took longer than the call may; the ranks that did not come are named.
        CollectiveFailed: another rank's process has ended; it is named.
        GroupBroken: another rank has given up.
    """
    with _taking_part(call) as memory:
        found = memory.find(flat) if flat.nbytes * memory.ranks > _WHOLE_BYTES else None
        if found is not None:
            _reduce_where_it_lies(memory, found, op, call)
        else:
            for piece in flat.split(memory.data.shape[-1] // flat.element_size()):
                _reduce_through_areas(memory, piece, op, call)


def gather_in_memory(parts: Sequence[torch.Tensor], call: Call) -> None:
    """Fill the parts of all ranks, of bytes and one size; this rank's own is there. Ask :func:`usable` before.

    Raises:
        CollectiveTimeout, CollectiveFailed, GroupBroken: as :func:`reduce_in_memory`.
    """
    with _taking_part(call) as memory:
        for pieces in zip(*(part.split(memory.data.shape[-1]) for part in parts), strict=True):
            areas = memory.areas(pieces[0])
            areas[memory.rank].copy_(pieces[memory.rank])
            memory.come(0, call)
            for rank, (area, piece) in enumerate(zip(areas, pieces, strict=True)):
                if rank != memory.rank:
                    piece.copy_(area)


def scatter_in_memory(out: torch.Tensor, parts: Sequence[torch.Tensor], op: Operation, call: Call) -> None:
    """Fold this rank's part of all ranks into ``out``, in their order; flat tensors of one size. As above.

    Raises:
        CollectiveTimeout, CollectiveFailed, GroupBroken: as :func:`reduce_in_memory`.
    """
    with _taking_part(call) as memory:
        length = memory.data.shape[-1] // (memory.ranks * _PART_BYTES) * _PART_BYTES // out.element_size()
        for target, *pieces in zip(out.split(length), *(part.split(length) for part in parts), strict=True):
            areas = [area.view(memory.ranks, -1) for area in memory.areas(target, memory.ranks)]
            for room, piece in zip(areas[memory.rank], pieces, strict=True):
                room.copy_(piece)
            memory.come(0, call)
            fold([area[memory.rank] for area in areas], op, target)


@contextmanager
def _taking_part(call: Call) -> Iterator[Memory]:
    """The group's memory, whose other ranks hear of it if this one does not come to an end."""
    memory = memory_of(call)
    if memory is None:
        raise InternalError(f"group {call.state.name!r} shares no memory")
    try:
        yield memory
    except BadValue:
        raise
    except BaseException:
        memory.leave(call)
        raise


def shared_tensor(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    group: dist.ProcessGroup | None = None,
    *,
    timeout: float | str | None = None,
) -> torch.Tensor:
    """Zeros of this rank's own, in memory that the group's other ranks on this host see, for them to be reduced in.

    An all_reduce of it, or of the same contiguous view of it on all ranks, copies nothing. All ranks make it, and all
    give it; the others write into it only while it is reduced. An ordinary tensor where the ranks share no memory.
    After a call that failed its contents are anything.

    Raises:
        CollectiveMismatch, CollectiveTimeout, GroupBroken: as :func:`holdfast.comm.all_reduce`.
    """
    state = state_of(group)
    size = torch.Size(shape)
    call = begin(state, f"shared_tensor of {size.numel():,} {str(dtype)[6:]} {list(size)}", timeout)
    memory = memory_of(call)
    if memory is None or not size.numel() or dtype.is_complex or dtype is torch.bool:
        return torch.zeros(size, dtype=dtype)
    made = memory.tensor(size.numel() * dtype.itemsize, call)
    return made.view(dtype).view(size) if made is not None else torch.zeros(size, dtype=dtype)


# ---- the steps


def _reduce_through_areas(memory: Memory, piece: torch.Tensor, op: Operation, call: Call) -> None:
    areas = memory.areas(piece)
    areas[memory.rank].copy_(piece)
    memory.come(0, call)
    if piece.nbytes * memory.ranks <= _WHOLE_BYTES:
        fold(areas, op, piece)
        return
    part = memory.slice_of(piece)
    mine = [area[part] for area in areas]
    fold(mine, op, mine[0])  # this slice of the areas is nobody else's until all have reduced theirs
    memory.reduced(call)
    piece.copy_(areas[0])


def _reduce_where_it_lies(memory: Memory, found: Found, op: Operation, call: Call) -> None:
    memory.step += 1
    memory.come(found.place, call)
    part = memory.slice_of(found.views[0])
    for blocks in zip(*(view[part].split(_BLOCK) for view in found.views), strict=True):
        fold(blocks, op, blocks[0])
        for block in blocks[1:]:
            block.copy_(blocks[0])
    memory.reduced(call)
    memory.look_who_left(call)  # who gave up in this step may have changed its tensor while we read
