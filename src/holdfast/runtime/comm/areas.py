"""Memory that a group's ranks on one host share, and the steps that they take through it together.

Each rank has two areas in it, for even and odd steps. Ranks wait for each other by numbers in the segment's head: a
rank writes its data first and then the number of its step, the others see the number first and then read the data. That
this order holds is what x86 promises (total store order) for aligned words, which CPython reads and writes with one
instruction each; where that is not promised, there is no such memory. A rank that gives up says so in the head, so that
who comes later takes no part.
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

from holdfast.errors import BadValue, CollectiveFailed
from holdfast.runtime.comm import peers, trouble
from holdfast.runtime.comm.hosts import layout_of
from holdfast.runtime.comm.presence import Call
from holdfast.runtime.comm.segments import keeps_order, share
from holdfast.runtime.comm.waiting import poll

#: The ranks are all there, and map a segment. One that dies at this makes the others wait so long, and do without.
_SHARE_S = 30.0
_LEAST_S = 0.01
#: Each rank has two areas of so many bytes, for even and odd steps; all areas together have at most so many.
_AREA_BYTES, _AREAS_BYTES = 2 << 20, 64 << 20
#: So often a rank looks for the others alone; who waits longer looks as well for whoever gave up or has ended.
_QUICK_LOOKS = 100
#: In the head each rank has a cache line of eight numbers: the step that it has come to, the one in which it has
#: reduced its slice, where its tensor lies (0 for in an area; for even and odd steps), and the step that it gave up in.
_LINE, _CAME, _REDUCED, _PLACE, _LEFT = 8, 0, 1, 2, 4
_PAGE = mmap.PAGESIZE


@dataclass(slots=True)
class _Tensor:
    """A shared tensor: its ``number`` is the same on all ranks, ``address`` is that of this rank's part."""

    number: int
    address: int
    nbytes: int
    stride: int
    segment: weakref.ref[mmap.mmap]


@dataclass(slots=True)
class Found:
    """``place`` is the same on all ranks that give the same part of the same tensor; ``views``: that of each rank."""

    place: int
    views: list[torch.Tensor]


class Memory:
    """The segment of one group. All its ranks take the same steps through it, whose numbers thereby agree.

    An area is written in every second step: whoever has come to the step between has read all that it wanted.
    """

    def __init__(self, segment: mmap.mmap, processes: Sequence[str], rank: int, head_bytes: int) -> None:
        ranks = len(processes)
        self.numbers = memoryview(segment)[: ranks * _LINE * 8].cast("q")
        self.data = torch.frombuffer(segment, dtype=torch.uint8)[head_bytes:].view(2, ranks, -1)
        self.ranks = ranks
        self.rank = rank
        self.step = 0
        self._peers = peers.Peers(dict(enumerate(processes)))
        self._own = rank * _LINE
        self._tensors: list[_Tensor] = []
        self._made = 0

    def areas(self, piece: torch.Tensor, times: int = 1) -> tuple[torch.Tensor, ...]:
        """Take the next step: the areas of all ranks, each as large as the piece, or so many of them."""
        self.step += 1
        return self.data[self.step & 1, :, : times * piece.nbytes].view(piece.dtype).unbind()

    def come(self, place: int, call: Call) -> None:
        """Say that this rank's tensor is there, and wait until all others' are."""
        where = _PLACE + (self.step & 1)
        self.numbers[self._own + where] = place
        self.numbers[self._own + _CAME] = self.step
        self._wait(_CAME, call)
        if len(set(self.numbers[where::_LINE])) > 1:
            raise BadValue("a tensor was given to all_reduce", why="it lies in a shared tensor on some ranks only",
                           next_step="give the same view of the same shared tensor on all")  # fmt: skip

    def reduced(self, call: Call) -> None:
        """Say that this rank has reduced its slice, and wait until all others have."""
        self.numbers[self._own + _REDUCED] = self.step
        self._wait(_REDUCED, call)

    def _wait(self, what: int, call: Call) -> None:
        numbers, step, at, end = self.numbers, self.step, what, self.ranks * _LINE
        looks = 0

        def ready() -> bool:
            nonlocal at, looks
            while at < end and numbers[at] >= step:
                at += _LINE
            if at >= end:
                return True
            looks += 1
            if looks > _QUICK_LOOKS:
                self._look_who_ended(what, call)
                self.look_who_left(call)
            os.sched_yield()  # to a rank on the same core
            return False

        poll(ready, call)

    def look_who_left(self, call: Call) -> None:
        """Raise what a rank that gave up in this step, or before, has written into the store."""
        if any(0 < left <= self.step for left in self.numbers[_LEFT::_LINE]):
            trouble.look(call)
            call.state.broken = f"another rank gave up in {call.words}"
            raise CollectiveFailed(call, why="another rank gave up in it")

    def _look_who_ended(self, what: int, call: Call) -> None:
        for rank in sorted(self._peers.ended()):
            if self.numbers[rank * _LINE + what] < self.step:  # or it has done what others wait for, and then ended
                why = f"rank {call.state.ranks[rank]} is gone: its process has ended"
                trouble.break_group(call, f"{call.words} failed in it: {why}")
                raise CollectiveFailed(call, why=why)

    def leave(self, call: Call) -> None:
        """Say that this rank takes no further part, as its call failed or was interrupted."""
        if not call.state.broken:
            with suppress(RuntimeError):  # the store may be gone
                trouble.break_group(call, f"{call.words} was interrupted in it")
        self.numbers[self._own + _LEFT] = max(self.step, 1)

    def slice_of(self, flat: torch.Tensor) -> slice:
        """This rank's share of a tensor's elements, beginning at a cache line."""
        share_of_all = -(-flat.numel() // self.ranks) + 63 & ~63
        return slice(self.rank * share_of_all, (self.rank + 1) * share_of_all)

    def tensor(self, nbytes: int, call: Call) -> torch.Tensor | None:
        """The bytes of a new shared tensor; None where there is no memory for it."""
        self._made += 1
        stride = -(-nbytes // _PAGE) * _PAGE
        segment, _ = _share(f"tensor/{self._made}", self.ranks * stride, call)
        if segment is None:
            return None
        own = torch.frombuffer(segment, dtype=torch.uint8, offset=self.rank * stride, count=nbytes)
        self._tensors.append(_Tensor(self._made, own.data_ptr(), nbytes, stride, weakref.ref(segment)))
        return own

    def find(self, flat: torch.Tensor) -> Found | None:
        """The shared tensor that these elements lie in."""
        for tensor in self._tensors:
            offset = flat.data_ptr() - tensor.address
            segment = tensor.segment()
            if segment is not None and offset >= 0 and offset + flat.nbytes <= tensor.nbytes:
                starts = range(offset, offset + self.ranks * tensor.stride, tensor.stride)
                views = [torch.frombuffer(segment, dtype=flat.dtype, count=flat.numel(), offset=at) for at in starts]
                return Found(tensor.number << 40 | offset, views)
        self._tensors = [tensor for tensor in self._tensors if tensor.segment() is not None]
        return None


#: By group; None where its ranks cannot have a segment.
_memories: WeakKeyDictionary[dist.ProcessGroup, Memory | None] = WeakKeyDictionary()


def memory_of(call: Call) -> Memory | None:
    """That of the call's group; made at the first question, so that all its ranks ask in one call. None: it has none.

    Raises:
        CollectiveTimeout: it is the first question, and ranks did not come to the call; they are named.
    """
    group = call.state.group
    if group not in _memories:
        _memories[group] = _make(call)
    return _memories[group]


def _make(call: Call) -> Memory | None:
    size = len(call.state.ranks)
    limit_s = max(call.until - time.monotonic(), _LEAST_S)
    if size < 2 or not keeps_order() or len(layout_of(call.state, limit_s)) > 1:
        return None
    head = -(-size * _LINE * 8 // _PAGE) * _PAGE
    area = min(_AREA_BYTES, _AREAS_BYTES // (2 * size) // _PAGE * _PAGE)
    segment, processes = _share("sums", head + 2 * size * area, call)
    return None if segment is None else Memory(segment, processes, call.state.group.rank(), head)


def _share(purpose: str, size: int, call: Call) -> tuple[mmap.mmap | None, list[str]]:
    """Memory that all ranks have or none; they meet before, so that nobody waits for one that does not come.

    Also which process each of them is.
    """
    store = PrefixStore(f"here/{purpose}", call.state.store)
    store.set(str(dist.get_rank()), peers.identity())
    keys = [str(rank) for rank in call.state.ranks]
    poll(lambda: store.check(keys), call)
    processes = [bytes(each).decode() for each in store.multi_get(keys)]
    return share(call.state, purpose, size, _SHARE_S), processes
