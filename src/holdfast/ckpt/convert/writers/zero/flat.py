"""Lays out ZeRO's flat buffers: which tensor range is where on each rank.

Stages 1 and 2 concatenate a group's parameters, pad the result to a multiple of two elements per
rank, and cut it into equal parts (deepspeed/runtime/zero/stage_1_and_2.py, ``__init__``). Stage 3
pads and cuts each parameter separately (partition_parameters.py, ``_partition_param``) and
concatenates the shards of a sub-group (stage3.py, ``_create_fp16_sub_groups``).
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence

from holdfast.ckpt.contents import ITEMSIZE, Tensor
from holdfast.ckpt.convert.files import TensorRun, Zeros
from holdfast.ckpt.convert.writers.zero.groups import MASTER_DTYPE, FlatGroup

#: Elements: each rank's part starts at a multiple of this.
ALIGNMENT = 2
#: DeepSpeed's default ``sub_group_size``, in elements of one rank.
SUB_GROUP = 1_000_000_000

Parts = tuple[TensorRun | Zeros, ...]


def partition_elements(group: FlatGroup, ranks: int) -> int:
    """Return one rank's elements of a group in stages 1 and 2, including padding."""
    return -(-group.numel // (ALIGNMENT * ranks)) * ALIGNMENT


def unpadded_elements(group: FlatGroup, ranks: int, rank: int) -> int:
    """Return one rank's elements of a group without padding."""
    size = partition_elements(group, ranks)
    return min(max(group.numel - rank * size, 0), size)


def param_addresses(
    group: FlatGroup, ranks: int, rank: int
) -> Iterator[tuple[Tensor, int, int, int]]:
    """Yield (parameter, start and stop within it, offset in the rank's part)."""
    size = partition_elements(group, ranks)
    starts = list(itertools.accumulate((param.numel for param in group.params), initial=0))
    first = bisect.bisect_right(starts, rank * size) - 1
    for at in range(max(first, 0), len(group.params)):
        begin, end = max(starts[at], rank * size), min(starts[at + 1], (rank + 1) * size)
        if begin >= (rank + 1) * size:
            return
        if begin < end:
            yield group.params[at], begin - starts[at], end - starts[at], begin - rank * size


def partition_parts(
    group: FlatGroup, ranks: int, rank: int, state: str = "", *, padded: bool
) -> Parts:
    """Return a rank's part of the weights, or of an optimizer state, in stages 1 and 2."""
    source = group.states[state] if state else None
    runs = [
        _tensor_run(param, source, begin, end)
        for param, begin, end, _ in param_addresses(group, ranks, rank)
    ]
    padding = (
        partition_elements(group, ranks) - unpadded_elements(group, ranks, rank) if padded else 0
    )
    return (*runs, *_zeros(padding))


def sub_groups(group: FlatGroup, ranks: int) -> Iterator[Sequence[Tensor]]:
    """Yield the parameters that stage 3 stores in one buffer."""
    if sum(shard_elements(param, ranks) for param in group.params) <= SUB_GROUP:
        yield group.params
        return
    sub_group: list[Tensor] = []
    size = 0
    for param in group.params:
        sub_group.append(param)
        size += shard_elements(param, ranks)
        if size >= SUB_GROUP or param is group.params[-1]:
            yield tuple(sub_group)
            sub_group, size = [], 0


def shard_elements(tensor: Tensor, ranks: int) -> int:
    """Return the elements of a parameter on each rank in stage 3, including padding."""
    return -(-tensor.numel // ranks)


def stage3_parts(
    params: Sequence[Tensor], ranks: int, rank: int, source: Mapping[str, Tensor] | None = None
) -> Parts:
    """Return a rank's sub-group buffer in stage 3: weights, or an optimizer state (``source``)."""
    return tuple(
        part for param in params for part in _param_parts(param, ranks, rank, source, MASTER_DTYPE)
    )


def frozen_parts(tensor: Tensor, ranks: int, rank: int, dtype: str) -> Parts:
    """Return a rank's part of a frozen parameter in stage 3, in the model's dtype."""
    return tuple(_param_parts(tensor, ranks, rank, None, dtype))


def _param_parts(
    tensor: Tensor, ranks: int, rank: int, source: Mapping[str, Tensor] | None, dtype: str
) -> Iterator[TensorRun | Zeros]:
    size = shard_elements(tensor, ranks)
    begin, end = min(rank * size, tensor.numel), min((rank + 1) * size, tensor.numel)
    if begin < end:
        yield _tensor_run(tensor, source, begin, end, dtype)
    yield from _zeros(size - (end - begin), dtype)


def _tensor_run(
    tensor: Tensor,
    source: Mapping[str, Tensor] | None,
    begin: int,
    end: int,
    dtype: str = MASTER_DTYPE,
) -> TensorRun | Zeros:
    """Return a run of the parameter or its state; zeros if it has no state yet, as in ZeRO."""
    stored = tensor if source is None else source.get(tensor.name)
    return (
        Zeros((end - begin) * ITEMSIZE[dtype])
        if stored is None
        else TensorRun(stored, begin, end, dtype)
    )


def _zeros(elements: int, dtype: str = MASTER_DTYPE) -> tuple[Zeros, ...]:
    return (Zeros(elements * ITEMSIZE[dtype]),) if elements else ()
