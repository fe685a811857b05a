"""Exchange small values of any length between all ranks, in collectives with timeouts."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import torch
import torch.distributed as dist

from holdfast.training.collectives.barriers import agree
from holdfast.training.collectives.gather import all_gather
from holdfast.training.collectives.groups.group_info import state_of

_T = TypeVar("_T")
#: Lengths are rounded up to a power of two, so that only a few sizes occur.
_MIN_BYTES = 1024


def is_single_process() -> bool:
    """Return whether there is no process group."""
    return not (dist.is_available() and dist.is_initialized())


def exchange_values(
    value: _T,
    kind: type[_T],
    group: dist.ProcessGroup | None = None,
    *,
    timeout: float | str | None = None,
) -> list[_T]:
    """Return the values of all ranks of ``group``, in order; ``kind`` is their msgspec type.

    All ranks call this.

    Raises:
        CollectiveTimeout, CollectiveFailed, GroupBroken: as :func:`holdfast.comm.all_reduce`.
    """
    if is_single_process():
        return [value]
    state = state_of(group)
    encoded = msgspec.json.encode(value)
    longest = int(agree(len(encoded), "max", group, timeout=timeout))
    padded_bytes = max(_MIN_BYTES, 1 << (longest - 1).bit_length())
    # JSON allows trailing spaces.
    own_row = torch.frombuffer(bytearray(encoded.ljust(padded_bytes)), dtype=torch.uint8).to(
        state.device
    )
    rows = torch.empty(padded_bytes * len(state.ranks), dtype=torch.uint8, device=state.device)
    all_gather(rows, own_row, group, timeout=timeout)
    decoder = msgspec.json.Decoder(kind)
    return [decoder.decode(bytes(row.tolist())) for row in rows.cpu().view(-1, padded_bytes)]


def ranks_of(group: dist.ProcessGroup | None) -> tuple[int, ...]:
    """Return the global ranks of the group in order; (0,) without a group."""
    return (0,) if is_single_process() else state_of(group).ranks
