"""The ways in which a tensor can be reduced: whole, in pieces, exchanged, in memory that the ranks share.

All of them reduce every element over all ranks and leave the same bits on each. For integers, and for MIN and MAX,
these are the bits of a single call too; sums of floats over more than two ranks are rounded in another order, as they
are between any two versions of a backend.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist

from holdfast.runtime.comm import shared_memory
from holdfast.runtime.comm.broadcast import on_gloo
from holdfast.runtime.comm.exchange import exchange
from holdfast.runtime.comm.folding import Operation, folds
from holdfast.runtime.comm.groups import GroupState
from holdfast.runtime.comm.presence import Call
from holdfast.runtime.comm.waiting import finish

#: Pieces under way at once, and elements of a piece: what was fastest at 10 ms round trip (1.3 to 1.5 times), and takes
#: 16 MiB of float32 where a copy is needed.
WINDOW, PIECE = 4, 1 << 20
#: Larger ones are not exchanged: every rank sends n times its tensor. Nor do more ranks than that.
_MOST_EXCHANGED_BYTES, _MOST_EXCHANGING = 64 << 10, 32
#: Smaller ones are not split.
_LEAST_SPLIT = 4 * PIECE


class Way(NamedTuple):
    """One way, and what it is called in the log."""

    name: str
    reduce: Callable[[torch.Tensor, Operation, Call], None]


def whole(flat: torch.Tensor, op: Operation, call: Call) -> None:
    """One call of the backend."""
    finish([start(flat, op, call.state)], call)


PLAIN = Way("one call", whole)


def in_pieces(flat: torch.Tensor, op: Operation, call: Call, *, chunk: int = PIECE, window: int = WINDOW) -> None:
    """Pieces of ``chunk`` elements, ``window`` of them under way at once: hides the latency of a link."""
    finish(_pieces(flat, op, call.state, chunk, window), call)


def narrowed(flat: torch.Tensor, op: Operation, call: Call, *, chunk: int, window: int) -> None:
    """As :func:`in_pieces`, with bfloat16 on the wire: half the bytes, and 8 bits of precision in what is sent."""
    finish(_narrow_pieces(flat, op, call.state, chunk, window), call)


def ways_for(flat: torch.Tensor, op: Operation, call: Call) -> list[Way]:
    """Those worth a trial for such a tensor in this group, the plain one first; the same on all ranks."""
    found = [PLAIN]
    if len(call.state.ranks) == 1 or not on_gloo(call.state, flat):
        return found
    if folds(op, flat.dtype) and flat.nbytes <= _MOST_EXCHANGED_BYTES and len(call.state.ranks) <= _MOST_EXCHANGING:
        found.append(Way("exchange", exchange))
    if flat.numel() >= _LEAST_SPLIT:
        found.append(Way("pieces", in_pieces))
    if shared_memory.takes(flat, op) and shared_memory.usable(call):
        found.append(Way("shared memory", shared_memory.reduce_in_memory))
    return found


def start(flat: torch.Tensor, op: Operation, state: GroupState) -> dist.Work:
    """Begin to reduce a contiguous tensor in place."""
    return state.group.allreduce([flat], _SUM if op is dist.ReduceOp.SUM else _options(op))


def _options(op: Operation) -> dist.AllreduceOptions:
    made = dist.AllreduceOptions()
    made.reduceOp = dist.ReduceOp(op) if isinstance(op, dist.ReduceOp.RedOpType) else op
    return made


#: Made once, as it is wanted in every step.
_SUM = _options(dist.ReduceOp.SUM)


def _pieces(flat: torch.Tensor, op: Operation, state: GroupState, chunk: int, window: int) -> Iterator[dist.Work]:
    """The works of all pieces in order; a piece is begun when the one ``window`` before it has been waited for."""
    under_way: deque[dist.Work] = deque()
    for piece in flat.split(chunk):
        if len(under_way) == window:
            yield under_way.popleft()
        under_way.append(start(piece, op, state))
    yield from under_way


def _narrow_pieces(
    flat: torch.Tensor, op: Operation, state: GroupState, chunk: int, window: int
) -> Iterator[dist.Work]:
    under_way: deque[tuple[torch.Tensor, torch.Tensor, dist.Work]] = deque()
    for piece in (*flat.split(chunk), None):
        while under_way and (piece is None or len(under_way) == window):
            target, sent, work = under_way.popleft()
            yield work  # it is over when we are asked for the next one
            target.copy_(sent)
        if piece is not None:
            sent = piece.to(torch.bfloat16)
            under_way.append((piece, sent, start(sent, op, state)))
