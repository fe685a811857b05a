"""Many small tensors in one collective: packed into a flat buffer for each dtype and device, reduced, written back.

One collective costs hundreds of microseconds however small it is, so that tensors reduced one by one cost as many times
that. The packing has to cost next to nothing beside it: in C++ (``native/packing.cpp``) where that is compiled, else by
torch's operators, to the same bits.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.distributed as dist

from holdfast.runtime import packing
from holdfast.runtime.comm import choice
from holdfast.runtime.comm.folding import Operation
from holdfast.runtime.comm.groups import state_of
from holdfast.runtime.comm.validation import wrong_with
from holdfast.runtime.comm.waiting import begin

#: What DistributedDataParallel and FSDP flatten by.
_native_nn = torch._C._nn  # noqa: SLF001 - public under no other name


def all_reduce_many(
    tensors: Iterable[torch.Tensor],
    op: Operation = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    *,
    timeout: float | str | None = None,
) -> list[torch.Tensor]:
    """Reduce each tensor over the ranks of ``group``, in place, in one collective for each dtype and device.

    Any mixture of shapes, dtypes, devices and strides; all ranks give as many, of the same shapes and dtypes, in the
    same order. Needs as much memory again as they have, except for one that is the only one of its dtype. The tensors
    are returned, in a list. ``timeout``: as of :func:`holdfast.comm.all_reduce`.

    Raises:
        BadValue: one cannot be reduced, two share memory, or there is no such group.
        CollectiveMismatch, CollectiveTimeout, CollectiveFailed, GroupBroken: as :func:`holdfast.comm.all_reduce`.
    """
    state = state_of(group)
    given = list(tensors)
    packed = _pack(given)
    wrong = packed.wrong or next(filter(None, (wrong_with(buffer, state, op) for buffer in packed.buffers)), "")
    nbytes = sum(buffer.nbytes for buffer in packed.buffers)
    call = begin(state, _words(packed, len(given), op), timeout, nbytes=nbytes, wrong=wrong)
    full = [buffer for buffer in packed.buffers if buffer.numel()]
    for buffer in full or [torch.zeros(1, device=state.device)]:  # without any, the ranks meet all the same
        choice.reduce(buffer, op, call)
    _unpack(given, packed)
    return given


@dataclass(slots=True)
class _Packed:
    """``buffers``: one for each dtype and device, in the order in which the list has them. ``shapes``: of all tensors.

    ``natively``: by the part in C++, which takes apart only what it has put together. ``wrong``: why nothing is.
    """

    buffers: list[torch.Tensor] = field(default_factory=list)
    shapes: bytes = b""
    natively: bool = False
    wrong: str = ""


def _words(packed: _Packed, count: int, op: Operation) -> str:
    """By these words, which differ where the lists do, ranks find out that their calls differ (``waiting.begin``)."""
    name = "all_reduce_many" if op == dist.ReduceOp.SUM else f"all_reduce_many ({str(op).rpartition('.')[2]})"
    sizes = ", ".join(f"{buffer.numel():,} {str(buffer.dtype).removeprefix('torch.')}" for buffer in packed.buffers)
    return f"{name} of {count:,} tensors ({sizes or 'nothing'}; shapes {zlib.crc32(packed.shapes):08x})"


# ---- packing


def _pack(given: list[torch.Tensor]) -> _Packed:
    """Flat copies of all tensors, or why one of them cannot be reduced in place."""
    native = packing.loaded()
    made = native.pack(given) if native is not None else None
    if made is not None:
        buffers, shapes = made
        return _Packed(buffers, shapes, natively=True)
    return _packed_by_torch(given)


def _unpack(given: list[torch.Tensor], packed: _Packed) -> None:
    native = packing.loaded()
    if packed.natively and native is not None:
        native.unpack(given, packed.buffers)
        return
    with torch.no_grad():
        for buffer, own in zip(packed.buffers, _members(given).values(), strict=True):
            if own[0].data_ptr() == buffer.data_ptr():  # the only one was given as it is
                continue
            scalars = all(tensor.ndim == 0 for tensor in own)
            parts = buffer.unbind() if scalars else _native_nn.unflatten_dense_tensors(buffer, own)
            torch._foreach_copy_(own, parts)


def _packed_by_torch(given: list[torch.Tensor]) -> _Packed:
    untyped: list[object] = list(given)
    other = next((type(each).__name__ for each in untyped if not isinstance(each, torch.Tensor)), "")
    if other:
        return _Packed(wrong=f"it reduces tensors, and was given a {other}; sync_metrics is for numbers")
    kinds = {(each.dtype, each.device, each.layout, each.requires_grad and each.is_leaf): each for each in given}
    wrong = next(filter(None, (wrong_with(each) for each in kinds.values())), "")
    if not wrong and _share_memory(given):
        wrong = "two of its tensors, or two elements of one, share memory; give each once, and clones of what overlaps"
    if wrong:
        return _Packed(wrong=wrong)
    members = _members(given)
    with torch.no_grad():
        buffers = [_native_nn.flatten_dense_tensors(own) for own in members.values()]
    return _Packed(buffers, _shapes(given, list(members)))


def _members(given: list[torch.Tensor]) -> dict[tuple[torch.dtype, torch.device], list[torch.Tensor]]:
    """The tensors of each dtype and device, in order."""
    members: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in given:
        members.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return members


def _shapes(given: list[torch.Tensor], groups: list[tuple[torch.dtype, torch.device]]) -> bytes:
    """As packing.cpp has them: 64 bits for the number of the buffer and the number of axes, then the axes."""
    number = {group: at << 32 for at, group in enumerate(groups)}
    shapes = array("q")
    for tensor in given:
        shape = tensor.shape
        shapes.append(number[tensor.dtype, tensor.device] | len(shape))
        shapes.extend(shape)
    return shapes.tobytes()


# ---- memory that two tensors share


def _share_memory(given: list[torch.Tensor]) -> bool:
    """Whether what is written back into one element changes another, too."""
    spans = sorted((tensor.data_ptr(), _extent(tensor), at) for at, tensor in enumerate(given) if tensor.numel())
    near = any(first + size > later for (first, size, _), (later, _, _) in pairwise(spans))
    return (near or not all(tensor.is_contiguous() for tensor in given)) and _overlap(given, spans)


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to behind its last."""
    if tensor.is_contiguous():
        return tensor.nbytes
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.element_size()


def _overlap(given: list[torch.Tensor], spans: list[tuple[int, int, int]]) -> bool:
    """Whether one byte belongs to two elements. Views may lie within each other, as rows and columns do, and not."""
    cluster: list[tuple[int, torch.Tensor]] = []
    first, end = 0, 0
    for address, size, at in [*spans, (1 << 64, 0, -1)]:
        if address >= end:
            if cluster and _marks_fewer(cluster, first, end):
                return True
            cluster, first = [], address
        cluster.append((address, given[at]))
        end = max(end, address + size)
    return False


def _marks_fewer(cluster: list[tuple[int, torch.Tensor]], first: int, end: int) -> bool:
    """Whether tensors that lie between two addresses have fewer bytes than all their elements together."""
    if len(cluster) == 1 and cluster[0][1].is_contiguous():
        return False
    marks = torch.zeros(end - first, dtype=torch.bool)
    for address, tensor in cluster:
        if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
            return True
        width = tensor.element_size()
        bytes_of_it = (*tensor.shape, width), (*(step * width for step in tensor.stride()), 1)
        marks.as_strided(*bytes_of_it, address - first).fill_(1)
    return int(marks.sum()) < sum(tensor.nbytes for _, tensor in cluster)
