"""A copy of this rank's pieces in host memory: training may go on as soon as it is taken.

Only what this rank writes is copied. The buffers (pinned where the state is on a GPU) are made at the first save and
used again at every later one, as fresh memory costs more than the copy: each page of it is a fault.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

from holdfast.runtime.checkpoint.plan import Plan


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
        devices = set()
        with torch.no_grad():
            for item in plan.items:
                found = resolve(item)
                if item.type == WriteItemType.BYTE_IO:
                    self._bytes[item.index] = found
                    continue
                source = found.detach()
                buffer = self._buffers.get(item.index)
                if buffer is None:
                    buffer = self._buffers[item.index] = _buffer_for(source)
                buffer.copy_(source, non_blocking=True)
                if source.is_cuda:
                    devices.add(source.device)
        for device in devices:
            torch.cuda.current_stream(device).synchronize()

    def get(self, item: WriteItem) -> Any:
        """The copy of one piece."""
        return self._bytes[item.index] if item.type == WriteItemType.BYTE_IO else self._buffers[item.index]

    @property
    def size(self) -> int:
        """Bytes of host memory that the buffers take."""
        return sum(buffer.nbytes for buffer in self._buffers.values())


def _buffer_for(source: torch.Tensor) -> torch.Tensor:
    return torch.empty(source.shape, dtype=source.dtype, device="cpu", pin_memory=source.is_cuda)
