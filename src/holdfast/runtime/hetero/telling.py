"""What each rank tells all the others: small values of any length, in bounded collectives."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import torch
import torch.distributed as dist

from holdfast.runtime.comm.gather import all_gather
from holdfast.runtime.comm.groups import state_of
from holdfast.runtime.comm.meetings import agree

_T = TypeVar("_T")
#: Lengths are rounded up to a power of two, so that calls of some sizes only are made.
_LEAST_BYTES = 1024


def alone() -> bool:
    """Whether there is no process group: then this process is all ranks."""
    return not (dist.is_available() and dist.is_initialized())


def everyone(
    value: _T, kind: type[_T], group: dist.ProcessGroup | None = None, *, timeout: float | str | None = None
) -> list[_T]:
    """What all ranks of ``group`` gave, in their order; ``kind`` is what msgspec makes of each. All ranks call it.

    Raises:
        CollectiveTimeout, CollectiveFailed, GroupBroken: as :func:`holdfast.comm.all_reduce`.
    """
    if alone():
        return [value]
    state = state_of(group)
    text = msgspec.json.encode(value)
    longest = int(agree(len(text), "max", group, timeout=timeout))
    room = max(_LEAST_BYTES, 1 << (longest - 1).bit_length())
    mine = torch.frombuffer(bytearray(text.ljust(room)), dtype=torch.uint8).to(state.device)  # JSON may end in spaces
    told = torch.empty(room * len(state.ranks), dtype=torch.uint8, device=state.device)
    all_gather(told, mine, group, timeout=timeout)
    decoder = msgspec.json.Decoder(kind)
    return [decoder.decode(bytes(row.tolist())) for row in told.cpu().view(-1, room)]


def ranks_of(group: dist.ProcessGroup | None) -> tuple[int, ...]:
    """The global ranks of the group in their order; rank 0 alone where there is none."""
    return (0,) if alone() else state_of(group).ranks
