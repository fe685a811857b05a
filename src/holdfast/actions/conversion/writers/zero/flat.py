"""ZeRO's flat buffers: which run of which tensor stands where, for each rank.

Stages 1 and 2 put a group's parameters one after the other, pad the whole to a multiple of two elements a rank, and cut
it in equal parts (deepspeed/runtime/zero/stage_1_and_2.py, ``__init__``). Stage 3 pads and cuts each parameter by
itself (partition_parameters.py, ``_partition_param``) and puts the parts of a sub-group one after the other (stage3.py,
``_create_fp16_sub_groups``).
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence

from holdfast.actions.conversion.files import Run, Zeros
from holdfast.actions.conversion.writers.zero.groups import MASTER, FlatGroup
from holdfast.facts.checkpoints.contents import ITEMSIZE, Tensor

#: Elements: DeepSpeed starts each rank's part at a multiple of so many.
ALIGNMENT = 2
#: DeepSpeed's own default of ``sub_group_size``: elements of one rank's parts.
SUB_GROUP = 1_000_000_000

Parts = tuple[Run | Zeros, ...]


def extent(group: FlatGroup, ranks: int) -> int:
    """Elements of one rank's part of a group in stages 1 and 2, padding counted."""
    return -(-group.numel // (ALIGNMENT * ranks)) * ALIGNMENT


def lean(group: FlatGroup, ranks: int, rank: int) -> int:
    """Elements of it that are no padding."""
    size = extent(group, ranks)
    return min(max(group.numel - rank * size, 0), size)


def addresses(group: FlatGroup, ranks: int, rank: int) -> Iterator[tuple[Tensor, int, int, int]]:
    """Parameters that stand in a rank's part, each with its first element there, that after its last, and the place."""
    size = extent(group, ranks)
    starts = list(itertools.accumulate((each.numel for each in group.params), initial=0))
    first = bisect.bisect_right(starts, rank * size) - 1
    for at in range(max(first, 0), len(group.params)):
        begin, end = max(starts[at], rank * size), min(starts[at + 1], (rank + 1) * size)
        if begin >= (rank + 1) * size:
            return
        if begin < end:
            yield group.params[at], begin - starts[at], end - starts[at], begin - rank * size


def part(group: FlatGroup, ranks: int, rank: int, state: str = "", *, padded: bool) -> Parts:
    """A rank's part of the weights, or of a state of the optimizer, in stages 1 and 2."""
    source = group.states[state] if state else None
    runs = [_run(each, source, begin, end) for each, begin, end, _ in addresses(group, ranks, rank)]
    padding = extent(group, ranks) - lean(group, ranks, rank) if padded else 0
    return (*runs, *_zeros(padding))


def sub_groups(group: FlatGroup, ranks: int) -> Iterator[Sequence[Tensor]]:
    """The parameters that stage 3 keeps in one buffer."""
    if sum(share(each, ranks) for each in group.params) <= SUB_GROUP:
        yield group.params
        return
    found: list[Tensor] = []
    size = 0
    for each in group.params:
        found.append(each)
        size += share(each, ranks)
        if size >= SUB_GROUP or each is group.params[-1]:
            yield tuple(found)
            found, size = [], 0


def share(tensor: Tensor, ranks: int) -> int:
    """Elements of a parameter on each rank in stage 3, padding counted."""
    return -(-tensor.numel // ranks)


def share_of(params: Sequence[Tensor], ranks: int, rank: int, source: Mapping[str, Tensor] | None = None) -> Parts:
    """A rank's buffer of a sub-group in stage 3: of the weights, or of a state of the optimizer (``source``)."""
    return tuple(part for each in params for part in _share(each, ranks, rank, source, MASTER))


def whole_share(tensor: Tensor, ranks: int, rank: int, dtype: str) -> Parts:
    """A rank's part of a frozen parameter in stage 3, in the dtype of the model."""
    return tuple(_share(tensor, ranks, rank, None, dtype))


def _share(
    tensor: Tensor, ranks: int, rank: int, source: Mapping[str, Tensor] | None, dtype: str
) -> Iterator[Run | Zeros]:
    size = share(tensor, ranks)
    begin, end = min(rank * size, tensor.numel), min((rank + 1) * size, tensor.numel)
    if begin < end:
        yield _run(tensor, source, begin, end, dtype)
    yield from _zeros(size - (end - begin), dtype)


def _run(tensor: Tensor, source: Mapping[str, Tensor] | None, begin: int, end: int, dtype: str = MASTER) -> Run | Zeros:
    """Of the parameter, or of its state; a parameter that has none yet has the zeros with which ZeRO begins."""
    found = tensor if source is None else source.get(tensor.name)
    return Zeros((end - begin) * ITEMSIZE[dtype]) if found is None else Run(found, begin, end, dtype)


def _zeros(elements: int, dtype: str = MASTER) -> tuple[Zeros, ...]:
    return (Zeros(elements * ITEMSIZE[dtype]),) if elements else ()
