"""A copy of this rank's pieces in host memory: training may go on as soon as it is taken.

Only what this rank writes is copied. The buffers (pinned where the state is on a GPU) are made at the first save and
used again at every later one, as fresh memory costs more than the copy: each page of it is a fault. In host memory
bytes are moved by memmove in a few threads, which is three times as fast as ``copy_`` (measured, torch 2.13).
"""

from __future__ import annotations

import ctypes
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

from holdfast.runtime.checkpoint.plan import Plan
from holdfast.runtime.checkpoint.storage import MOST_THREADS, threads_here

#: A copy is divided into moves of at most so many bytes, and what is less in all is not worth a thread.
_MOVE_BYTES = 8 << 20

#: Where to, where from, how many bytes.
_Move = tuple[int, int, int]


class Snapshot:
    """The buffers of one plan, and what was copied into them last."""

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._buffers: dict[Any, torch.Tensor] = {}
        self._bytes: dict[Any, io.BytesIO] = {}

    def take(self, plan: Plan, resolve: Callable[[WriteItem], Any]) -> None:
        """Copy all pieces; when it returns, training may change them. The last copy must not be read any more."""
        if plan is not self._plan:
            self._plan, self._buffers = plan, {}
        devices, moves = set(), []
        kept = []  # what is copied from must live until it was
        with torch.no_grad():
            for item in plan.items:
                found = resolve(item)
                if item.type == WriteItemType.BYTE_IO:
                    self._bytes[item.index] = found
                    continue
                source, buffer = found.detach(), self._buffer(item, found)
                if source.device.type == "cpu" and source.is_contiguous() and not _lazy(source):
                    kept.append(source)
                    moves += _moves(buffer.data_ptr(), source.data_ptr(), source.nbytes)
                else:
                    buffer.copy_(source, non_blocking=True)
                    devices |= {source.device} if source.is_cuda else set()
        _carry_out(moves)
        for device in devices:
            torch.cuda.current_stream(device).synchronize()

    def get(self, item: WriteItem) -> Any:
        """The copy of one piece."""
        return self._bytes[item.index] if item.type == WriteItemType.BYTE_IO else self._buffers[item.index]

    def _buffer(self, item: WriteItem, source: torch.Tensor) -> torch.Tensor:
        if item.index not in self._buffers:
            self._buffers[item.index] = torch.empty(source.shape, dtype=source.dtype, pin_memory=source.is_cuda)
        return self._buffers[item.index]


def _lazy(source: torch.Tensor) -> bool:
    """Whether the bytes in memory are not the values yet (a conjugate or negative view)."""
    return bool(source.is_conj() or source.is_neg())


def _moves(to: int, begin: int, size: int) -> list[_Move]:
    return [(to + at, begin + at, min(_MOVE_BYTES, size - at)) for at in range(0, size, _MOVE_BYTES)]


def _carry_out(moves: list[_Move]) -> None:
    if sum(size for _, _, size in moves) <= _MOVE_BYTES or threads_here() == 1:
        for move in moves:
            ctypes.memmove(*move)
        return
    with ThreadPoolExecutor(min(MOST_THREADS, threads_here()), "holdfast-copier") as threads:
        list(threads.map(lambda part: [ctypes.memmove(*move) for move in part], _spread(moves)))


def _spread(moves: list[_Move]) -> list[list[_Move]]:
    """The moves in parts of at least one full move, as a thread is not worth less."""
    parts: list[list[_Move]] = [[]]
    size = 0
    for move in moves:
        if size >= _MOVE_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(move)
        size += move[2]
    return parts
