"""Reduce many small tensors in one collective: pack them per dtype and device, reduce, unpack.

One collective costs hundreds of microseconds for any size, so tensors reduced one by one cost that
each. Packing must be almost free beside it: it runs in C++ (``native/packing.cpp``) if that is
compiled, else in torch's operators, with the same bits.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.distributed as dist

from holdfast.core.keyword_hints import suggest_keywords
from holdfast.training import packing_extension
from holdfast.training.collectives import algorithm_choice
from holdfast.training.collectives.bounded_wait import begin_call
from holdfast.training.collectives.call_text import dtype_name, operation_name
from holdfast.training.collectives.groups.group_info import runs_alone, state_of
from holdfast.training.collectives.reduction import Operation
from holdfast.training.collectives.validation import check_alone, find_refusal

#: Flattening as in DistributedDataParallel and FSDP.
_native_nn = torch._C._nn  # noqa: SLF001 - not public under any other name
#: Copying a buffer up to this size once more is faster than checking whether it is a user's tensor.
_CHEAP_BYTES = 64 << 10

_Kind = tuple[torch.dtype, torch.device]


@suggest_keywords
def all_reduce_many(
    tensors: Iterable[torch.Tensor],
    op: Operation = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    *,
    timeout: float | str | None = None,
) -> list[torch.Tensor]:
    """Reduce each tensor over the ranks of ``group``, in place, with one collective per dtype.

    Any mixture of shapes, dtypes, devices (one collective each) and strides. All ranks pass the
    same shapes and dtypes in the same order. Needs as much memory again as the tensors have, except
    for a tensor that is the only one of its dtype. Returns the tensors as a list. ``timeout``: as
    in :func:`holdfast.comm.all_reduce`.

    Raises:
        InvalidValue: a tensor cannot be reduced, two share memory, or there is no such group.
        CollectiveMismatch, CollectiveTimeout, CollectiveFailed, GroupBroken: as
            :func:`holdfast.comm.all_reduce`.
    """
    members = list(tensors)
    packed = _pack(members)
    if runs_alone(group):
        check_alone("all_reduce_many", packed.refusal)
        return members
    state = state_of(group)
    refusals = (find_refusal(buffer, state, op) for buffer in packed.buffers)
    refusal = packed.refusal or next(filter(None, refusals), "")
    nbytes = sum(buffer.nbytes for buffer in packed.buffers)
    signature = _signature(packed, len(members), op)
    call = begin_call(state, signature, timeout, nbytes=nbytes, refusal=refusal)
    non_empty = [buffer for buffer in packed.buffers if buffer.numel()]
    # Without any data, the ranks still wait for each other.
    for buffer in non_empty or [torch.zeros(1, device=state.device)]:
        call.owns_tensor = buffer.nbytes > _CHEAP_BYTES and all(
            buffer.data_ptr() != tensor.data_ptr() for tensor in members
        )
        algorithm_choice.reduce_by_fastest(buffer, op, call)
    _unpack(members, packed)
    return members


@dataclass(slots=True)
class _PackedTensors:
    """``buffers``: one per dtype and device, in order of first use. ``shapes``: of all tensors.

    ``is_native``: packed in C++, which unpacks only its own. ``refusal``: why nothing is packed.
    """

    buffers: list[torch.Tensor] = field(default_factory=list)
    shapes: bytes = b""
    is_native: bool = False
    refusal: str = ""


def _signature(packed: _PackedTensors, count: int, op: Operation) -> str:
    """Return a signature that differs if the lists of tensors differ."""
    sizes = ", ".join(f"{buffer.numel():,} {dtype_name(buffer.dtype)}" for buffer in packed.buffers)
    shapes = f"{sizes or 'empty'}; shapes {zlib.crc32(packed.shapes):08x}"
    return f"{operation_name('all_reduce_many', op)} of {count:,} tensors ({shapes})"


# ---- packing


def _pack(tensors: list[torch.Tensor]) -> _PackedTensors:
    """Return flat copies of all tensors, or why one of them cannot be reduced in place."""
    native = packing_extension.load()
    result = native.pack(tensors) if native is not None else None
    if result is not None:
        buffers, shapes = result
        return _PackedTensors(buffers, shapes, is_native=True)
    return _pack_with_torch(tensors)


def _unpack(tensors: list[torch.Tensor], packed: _PackedTensors) -> None:
    native = packing_extension.load()
    if packed.is_native and native is not None:
        native.unpack(tensors, packed.buffers)
        return
    with torch.no_grad():
        for buffer, members in zip(packed.buffers, _by_kind(tensors).values(), strict=True):
            if members[0].data_ptr() == buffer.data_ptr():  # the only one, reduced in place
                continue
            scalars = all(tensor.ndim == 0 for tensor in members)
            unflatten = _native_nn.unflatten_dense_tensors
            parts = buffer.unbind() if scalars else unflatten(buffer, members)
            # Without empty tensors: unflatten loses their shape (torch 2.4 to 2.8).
            pairs = [pair for pair in zip(members, parts, strict=True) if pair[0].numel()]
            if pairs:
                filled, values = zip(*pairs, strict=True)
                torch._foreach_copy_(filled, values)


def _pack_with_torch(tensors: list[torch.Tensor]) -> _PackedTensors:
    untyped: list[object] = list(tensors)
    others = (type(each).__name__ for each in untyped if not isinstance(each, torch.Tensor))
    if other := next(others, ""):
        return _PackedTensors(refusal=f"an element is a {other}; use sync_metrics for numbers")
    # One tensor of each kind that find_refusal distinguishes.
    kinds = {
        (each.dtype, each.device, each.layout, each.requires_grad and each.is_leaf): each
        for each in tensors
    }
    refusal = next(filter(None, map(find_refusal, kinds.values())), "")
    if not refusal and _share_memory(tensors):
        refusal = "two tensors, or two elements of one, share memory; pass each once, or clones"
    if refusal:
        return _PackedTensors(refusal=refusal)
    by_kind = _by_kind(tensors)
    with torch.no_grad():
        buffers = [_native_nn.flatten_dense_tensors(members) for members in by_kind.values()]
    return _PackedTensors(buffers, _encode_shapes(tensors, list(by_kind)))


def _by_kind(tensors: list[torch.Tensor]) -> dict[_Kind, list[torch.Tensor]]:
    """Return the tensors of each dtype and device, in order."""
    by_kind: dict[_Kind, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_kind.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return by_kind


def _encode_shapes(tensors: list[torch.Tensor], kinds: list[_Kind]) -> bytes:
    """Encode as packing.cpp: 64 bits for buffer index and dimensions, then the sizes."""
    buffer_index = {kind: index << 32 for index, kind in enumerate(kinds)}
    shapes = array("q")
    for tensor in tensors:
        shape = tensor.shape
        shapes.append(buffer_index[tensor.dtype, tensor.device] | len(shape))
        shapes.extend(shape)
    return shapes.tobytes()


# ---- memory shared by two tensors


def _share_memory(tensors: list[torch.Tensor]) -> bool:
    """Return whether writing one element of the tensors changes another."""
    spans = sorted(
        (tensor.data_ptr(), _extent(tensor), index)
        for index, tensor in enumerate(tensors)
        if tensor.numel()
    )
    intersect = any(first + size > later for (first, size, _), (later, _, _) in pairwise(spans))
    may_overlap = intersect or not all(tensor.is_contiguous() for tensor in tensors)
    return may_overlap and _elements_overlap(tensors, spans)


def _extent(tensor: torch.Tensor) -> int:
    """Return the bytes from a tensor's first element to the end of its last."""
    if tensor.is_contiguous():
        return tensor.nbytes
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (sum((size - 1) * stride for size, stride in steps) + 1) * tensor.element_size()


def _elements_overlap(tensors: list[torch.Tensor], spans: list[tuple[int, int, int]]) -> bool:
    """Return whether a byte belongs to two elements. Views may interleave without sharing bytes."""
    cluster: list[tuple[int, torch.Tensor]] = []
    first, end = 0, 0
    for address, size, index in [*spans, (1 << 64, 0, -1)]:
        if address >= end:
            if cluster and _cluster_overlaps(cluster, first, end):
                return True
            cluster, first = [], address
        cluster.append((address, tensors[index]))
        end = max(end, address + size)
    return False


def _cluster_overlaps(cluster: list[tuple[int, torch.Tensor]], first: int, end: int) -> bool:
    """Return whether the tensors between two addresses cover fewer bytes than they have."""
    if len(cluster) == 1 and cluster[0][1].is_contiguous():
        return False
    is_covered = torch.zeros(end - first, dtype=torch.bool)
    for address, tensor in cluster:
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        if any(stride == 0 and size > 1 for size, stride in steps):
            return True
        width = tensor.element_size()
        shape, strides = (*tensor.shape, width), (*(step * width for step in tensor.stride()), 1)
        is_covered.as_strided(shape, strides, address - first).fill_(1)
    return int(is_covered.sum()) < sum(tensor.nbytes for _, tensor in cluster)
