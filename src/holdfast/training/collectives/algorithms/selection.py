"""All-reduce algorithms: in one call, in chunks, by exchange, or through shared memory.

All reduce every element over all ranks and leave the same bits on each. For integers, and for MIN
and MAX, these are also the bits of a single call; sums of floats over more than two ranks are
rounded in another order, as between any two versions of a backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from holdfast.training.collectives.algorithms.exchange import reduce_by_exchange
from holdfast.training.collectives.backend_calls import start_all_reduce, uses_gloo
from holdfast.training.collectives.bounded_wait import wait_for_works
from holdfast.training.collectives.groups.arrivals import BoundedCall
from holdfast.training.collectives.reduction import Operation, can_fold
from holdfast.training.collectives.scratch import (
    PendingCopy,
    copy_back,
    copy_back_in_order,
    keep_scratch,
    reusable_scratch_copy,
    scratch_copy,
)
from holdfast.training.collectives.shared_memory import transport

#: Chunks in flight at once, and elements of a chunk: fastest at 10 ms round trip (1.3 to 1.5
#: times), and needs 16 MiB of float32 for scratch copies.
WINDOW, CHUNK = 4, 1 << 20
#: Upper bounds for an exchange, in bytes and ranks: every rank sends n times its tensor.
_MAX_EXCHANGE_BYTES, _MAX_EXCHANGE_RANKS = 64 << 10, 32
#: Smaller tensors, in elements, are not chunked.
_MIN_CHUNKED = 4 * CHUNK


class ReduceAlgorithm(NamedTuple):
    """An all-reduce algorithm and its name in the log."""

    name: str
    reduce: Callable[[torch.Tensor, Operation, BoundedCall], None]


def reduce_in_one_call(flat: torch.Tensor, op: Operation, call: BoundedCall) -> None:
    """Reduce in one call of the backend."""
    scratch = reusable_scratch_copy(flat, call)
    wait_for_works([start_all_reduce(scratch, op, call.state)], call)
    copy_back(scratch, flat)
    keep_scratch(scratch, call)


ONE_CALL = ReduceAlgorithm("one call", reduce_in_one_call)


def reduce_in_chunks(
    flat: torch.Tensor,
    op: Operation,
    call: BoundedCall,
    *,
    chunk: int = CHUNK,
    window: int = WINDOW,
) -> None:
    """Reduce chunks of ``chunk`` elements, ``window`` in flight at once: hides a link's latency."""

    def start_all() -> Iterator[PendingCopy]:
        for part in flat.split(chunk):
            scratch = scratch_copy(part, call)
            yield start_all_reduce(scratch, op, call.state), scratch, part

    wait_for_works(copy_back_in_order(start_all(), window), call)


def reduce_as_bf16(
    flat: torch.Tensor, op: Operation, call: BoundedCall, *, chunk: int, window: int
) -> None:
    """Reduce in chunks that are sent as bfloat16: half the bytes, 8 bits of precision."""

    def start_all() -> Iterator[PendingCopy]:
        for part in flat.split(chunk):
            sent = part.to(torch.bfloat16)
            yield start_all_reduce(sent, op, call.state), sent, part

    wait_for_works(copy_back_in_order(start_all(), window), call)


def candidate_algorithms(
    flat: torch.Tensor, op: Operation, call: BoundedCall
) -> list[ReduceAlgorithm]:
    """Return the algorithms worth a trial, one call first; the same on all ranks."""
    candidates = [ONE_CALL]
    size = len(call.state.ranks)
    if size == 1 or not uses_gloo(call.state, flat):
        return candidates
    is_small = flat.nbytes <= _MAX_EXCHANGE_BYTES and size <= _MAX_EXCHANGE_RANKS
    if is_small and can_fold(op, flat.dtype):
        candidates.append(ReduceAlgorithm("exchange", reduce_by_exchange))
    if flat.numel() >= _MIN_CHUNKED:
        candidates.append(ReduceAlgorithm("chunks", reduce_in_chunks))
    if transport.can_reduce(flat, op) and transport.is_available(call):
        candidates.append(ReduceAlgorithm("shared memory", transport.reduce_in_memory))
    return candidates
