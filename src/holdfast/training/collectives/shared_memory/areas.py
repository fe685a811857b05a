"""Memory that a group's ranks on one host share, and the steps that they take through it together.

Each rank has two areas, for even and odd steps. Ranks wait for each other by numbers in the
segment's header: a rank writes its data and then the number of its step; the others read the number
and then the data. x86 guarantees this order (total store order) for aligned words, which CPython
reads and writes with one instruction each; other processors do not use such memory. A rank that
aborts records it in the header, so that late ranks do not participate.
"""

from __future__ import annotations

import mmap
import os
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from holdfast.core.errors import CollectiveFailed, InvalidValue
from holdfast.training.collectives import failures
from holdfast.training.collectives.bounded_wait import poll_until
from holdfast.training.collectives.groups.arrivals import BoundedCall
from holdfast.training.collectives.groups.rank_hosts import host_layout
from holdfast.training.collectives.groups.segments import (
    create_segment,
    make_private,
    preserves_store_order,
)
from holdfast.training.collectives.shared_memory.peers import PeerProcesses, process_identity

#: Timeout for mapping a segment once all ranks have arrived. If one dies meanwhile, the others wait
#: this long and then continue without the segment.
_MAP_LIMIT_S = 30.0
_MIN_LIMIT_S = 0.01
#: Upper bounds of one area, of which each rank has two, and of all areas together.
_AREA_BYTES, _AREAS_BYTES = 2 << 20, 64 << 20
#: Polls before a rank also checks for aborted and ended ranks.
_QUICK_POLLS = 100
#: Each rank has a cache line of eight numbers in the header: the step it has entered, the one in
#: which it has reduced its slice, the offset of its tensor (0: in an area; for even and odd steps),
#: and the step in which it aborted.
_LINE, _ENTERED, _REDUCED, _OFFSET, _ABORTED = 8, 0, 1, 2, 4
_PAGE = mmap.PAGESIZE


@dataclass(slots=True)
class _SharedTensor:
    """A shared tensor: ``number`` is equal on all ranks, ``address`` is of this rank's part."""

    number: int
    address: int
    nbytes: int
    stride: int
    segment: weakref.ref[mmap.mmap]


@dataclass(slots=True)
class SharedViews:
    """Views of one part of a shared tensor, one per rank.

    ``offset`` is equal on all ranks if they pass the same part of the same tensor.
    """

    offset: int
    views: list[torch.Tensor]


class SharedMemory:
    """The segment of one group. All its ranks take the same steps through it, in the same order.

    An area is written in every second step: a rank that has entered the step between has read all
    it needs.
    """

    def __init__(
        self, segment: mmap.mmap, processes: Sequence[str], rank: int, header_bytes: int
    ) -> None:
        ranks = len(processes)
        self.numbers = memoryview(segment)[: ranks * _LINE * 8].cast("q")
        self.data = torch.frombuffer(segment, dtype=torch.uint8)[header_bytes:].view(2, ranks, -1)
        self.ranks = ranks
        self.rank = rank
        self.step = 0
        self._peers = PeerProcesses(dict(enumerate(processes)))
        self._own_line = rank * _LINE
        self._tensors: list[_SharedTensor] = []
        self._created = 0

    @property
    def area_bytes(self) -> int:
        """Return the size of one area."""
        return self.data.shape[-1]

    def next_areas(self, part: torch.Tensor, times: int = 1) -> tuple[torch.Tensor, ...]:
        """Take the next step; return all ranks' areas, each of the size of ``times`` parts."""
        self.step += 1
        return self.data[self.step & 1, :, : times * part.nbytes].view(part.dtype).unbind()

    def enter(self, offset: int, call: BoundedCall) -> None:
        """Publish that this rank's data are in place, and wait for those of all others."""
        column = _OFFSET + (self.step & 1)
        self.numbers[self._own_line + column] = offset
        self.numbers[self._own_line + _ENTERED] = self.step
        self._wait(_ENTERED, call)
        if len(set(self.numbers[column::_LINE])) > 1:
            raise InvalidValue(
                "the tensor of all_reduce",
                why="it is in a shared tensor only on some ranks",
                next_step="pass the same view of the same shared tensor on all ranks",
            )

    def finish_slice(self, call: BoundedCall) -> None:
        """Publish that this rank has reduced its slice, and wait until all others have."""
        self.numbers[self._own_line + _REDUCED] = self.step
        self._wait(_REDUCED, call)

    def _wait(self, column: int, call: BoundedCall) -> None:
        numbers, step, index, end = self.numbers, self.step, column, self.ranks * _LINE
        polls = 0

        def is_ready() -> bool:
            nonlocal index, polls
            while index < end and numbers[index] >= step:
                index += _LINE
            if index >= end:
                return True
            polls += 1
            if polls > _QUICK_POLLS:
                self._check_ended_ranks(column, call)
                self.check_aborted_ranks(call)
            os.sched_yield()  # to a rank on the same core
            return False

        poll_until(is_ready, call)

    def check_aborted_ranks(self, call: BoundedCall) -> None:
        """Raise the reported failure of a rank that aborted in this step or before."""
        if any(0 < aborted <= self.step for aborted in self.numbers[_ABORTED::_LINE]):
            failures.raise_reported_failure(call)
            call.state.broken = f"another rank aborted {call.signature}"
            raise CollectiveFailed(call, why="another rank aborted it")

    def _check_ended_ranks(self, column: int, call: BoundedCall) -> None:
        for rank in sorted(self._peers.ended_ranks()):
            # Otherwise it ended after its part of this step.
            if self.numbers[rank * _LINE + column] < self.step:
                why = f"the process of rank {call.state.ranks[rank]} has ended"
                failures.break_group(call.state, f"{call.signature} failed: {why}", call.number)
                raise CollectiveFailed(call, why=why)

    def abort(self, call: BoundedCall) -> None:
        """Publish that this rank stops participating: its call failed or was interrupted."""
        if not call.state.broken:
            with suppress(RuntimeError):  # the store may be gone
                why = f"{call.signature} was interrupted"
                failures.break_group(call.state, why, call.number)
        self.numbers[self._own_line + _ABORTED] = max(self.step, 1)

    def slice_of(self, flat: torch.Tensor) -> slice:
        """Return this rank's slice of a tensor's elements, which starts at a cache line."""
        length = -(-flat.numel() // self.ranks) + 63 & ~63
        return slice(self.rank * length, (self.rank + 1) * length)

    def allocate_tensor(self, nbytes: int, call: BoundedCall) -> torch.Tensor | None:
        """Return the bytes of a new shared tensor; None if there is no memory for it."""
        self._created += 1
        stride = -(-nbytes // _PAGE) * _PAGE
        segment, _ = _create_for_all(f"tensor/{self._created}", self.ranks * stride, call)
        if segment is None:
            return None
        own = torch.frombuffer(segment, dtype=torch.uint8, offset=self.rank * stride, count=nbytes)
        self._tensors.append(
            _SharedTensor(self._created, own.data_ptr(), nbytes, stride, weakref.ref(segment))
        )
        return own

    def detach(self, shared: SharedViews) -> None:
        """Move this rank's part of a shared tensor to private memory at the same address.

        A late rank that enters the call then does not write to it. The group must not be used
        again.
        """
        for tensor in self._tensors:
            segment = tensor.segment()
            if segment is not None and tensor.number == shared.offset >> 40:
                start = self.rank * tensor.stride
                pages = torch.frombuffer(segment, dtype=torch.uint8)[start : start + tensor.stride]
                make_private(pages)

    def find_views(self, flat: torch.Tensor) -> SharedViews | None:
        """Return the views of all ranks if these elements are in a shared tensor."""
        for tensor in self._tensors:
            offset = flat.data_ptr() - tensor.address
            segment = tensor.segment()
            if segment is not None and offset >= 0 and offset + flat.nbytes <= tensor.nbytes:
                starts = range(offset, offset + self.ranks * tensor.stride, tensor.stride)
                views = [
                    torch.frombuffer(segment, dtype=flat.dtype, count=flat.numel(), offset=start)
                    for start in starts
                ]
                return SharedViews(tensor.number << 40 | offset, views)
        self._tensors = [tensor for tensor in self._tensors if tensor.segment() is not None]
        return None


#: By group; None if its ranks cannot share memory.
_memories: WeakKeyDictionary[dist.ProcessGroup, SharedMemory | None] = WeakKeyDictionary()


def shared_memory_of(call: BoundedCall) -> SharedMemory | None:
    """Return the memory of the call's group, None if it has none.

    The first request creates it, so all ranks must make it in the same call.

    Raises:
        CollectiveTimeout: it is the first request, and ranks did not enter the call; names them.
    """
    group = call.state.group
    if group not in _memories:
        _memories[group] = _create(call)
    return _memories[group]


def _create(call: BoundedCall) -> SharedMemory | None:
    size = len(call.state.ranks)
    limit_s = max(call.deadline - time.monotonic(), _MIN_LIMIT_S)
    if size < 2 or not preserves_store_order() or len(host_layout(call.state, limit_s)) > 1:
        return None
    header = -(-size * _LINE * 8 // _PAGE) * _PAGE
    area = min(_AREA_BYTES, _AREAS_BYTES // (2 * size) // _PAGE * _PAGE)
    segment, processes = _create_for_all("sums", header + 2 * size * area, call)
    if segment is None:
        return None
    return SharedMemory(segment, processes, call.state.group.rank(), header)


def _create_for_all(
    purpose: str, size: int, call: BoundedCall
) -> tuple[mmap.mmap | None, list[str]]:
    """Return memory that all ranks have or none, and the identity of each rank's process.

    The ranks synchronize first, so that none waits for one that does not arrive.
    """
    store = PrefixStore(f"arrived/{purpose}", call.state.store)
    store.set(str(dist.get_rank()), process_identity())
    keys = [str(rank) for rank in call.state.ranks]
    poll_until(lambda: store.check(keys), call)
    processes = [bytes(identity).decode() for identity in store.multi_get(keys)]
    return create_segment(call.state, purpose, size, _MAP_LIMIT_S), processes
