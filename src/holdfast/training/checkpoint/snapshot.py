"""Copy this rank's shards to host memory, so that training continues while they are written.

Only what this rank writes is copied. The buffers (pinned if the state is on a GPU) are allocated at
the first save and reused, because page faults on fresh memory cost more than the copy. Host memory
is copied by memmove in a few threads, three times as fast as ``copy_`` (measured, torch 2.13).
"""

from __future__ import annotations

import ctypes
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

from holdfast.training.checkpoint.storage.shard_files import MAX_THREADS, available_cores
from holdfast.training.checkpoint.write_plan import ShardPlan

#: Maximum size of one memmove; smaller totals use no threads.
_COPY_BYTES = 8 << 20

#: Target address, source address, number of bytes.
_CopyRange = tuple[int, int, int]


class StateSnapshot:
    """The buffers of one plan and their latest contents."""

    def __init__(self) -> None:
        self._plan: ShardPlan | None = None
        self._buffers: dict[Any, torch.Tensor] = {}
        self._bytes: dict[Any, io.BytesIO] = {}

    def take(self, plan: ShardPlan, resolve: Callable[[WriteItem], Any]) -> None:
        """Copy all shards, after which training may change them; invalidates the previous copy."""
        if plan is not self._plan:
            self._plan, self._buffers = plan, {}
        devices, ranges = set(), []
        sources = []  # sources must outlive the copy
        with torch.no_grad():
            for item in plan.items:
                resolved = resolve(item)
                if item.type == WriteItemType.BYTE_IO:
                    self._bytes[item.index] = resolved
                    continue
                source, buffer = resolved.detach(), self._buffer(item, resolved)
                if (
                    source.device.type == "cpu"
                    and source.is_contiguous()
                    and not _is_lazy_view(source)
                ):
                    sources.append(source)
                    ranges += _copy_ranges(buffer.data_ptr(), source.data_ptr(), source.nbytes)
                else:
                    buffer.copy_(source, non_blocking=True)
                    devices |= {source.device} if source.is_cuda else set()
        _copy_all(ranges)
        for device in devices:
            torch.cuda.current_stream(device).synchronize()

    def get(self, item: WriteItem) -> Any:
        """Return the copied data of one item."""
        return (
            self._bytes[item.index]
            if item.type == WriteItemType.BYTE_IO
            else self._buffers[item.index]
        )

    def _buffer(self, item: WriteItem, source: torch.Tensor) -> torch.Tensor:
        if item.index not in self._buffers:
            self._buffers[item.index] = torch.empty(
                source.shape, dtype=source.dtype, pin_memory=source.is_cuda
            )
        return self._buffers[item.index]


def _is_lazy_view(source: torch.Tensor) -> bool:
    """Return whether memory holds other than the final values (conjugate or negative view)."""
    return bool(source.is_conj() or source.is_neg())


def _copy_ranges(to: int, begin: int, size: int) -> list[_CopyRange]:
    return [
        (to + at, begin + at, min(_COPY_BYTES, size - at)) for at in range(0, size, _COPY_BYTES)
    ]


def _copy_all(ranges: list[_CopyRange]) -> None:
    if sum(size for _, _, size in ranges) <= _COPY_BYTES or available_cores() == 1:
        for copy_range in ranges:
            ctypes.memmove(*copy_range)
        return
    with ThreadPoolExecutor(min(MAX_THREADS, available_cores()), "holdfast-copier") as threads:
        list(
            threads.map(
                lambda group: [ctypes.memmove(*copy_range) for copy_range in group],
                _split_ranges(ranges),
            )
        )


def _split_ranges(ranges: list[_CopyRange]) -> list[list[_CopyRange]]:
    """Group the copies for threads, at least one full range each."""
    groups: list[list[_CopyRange]] = [[]]
    size = 0
    for copy_range in ranges:
        if size >= _COPY_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(copy_range)
        size += copy_range[2]
    return groups
