"""Reads small values embedded as complete torch.save files, each distinct one once.

A torch.distributed.checkpoint has thousands of them (a step per parameter, a dozen options per
group), most with identical bytes.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from holdfast.ckpt.contents import FileProblem, Tensor
from holdfast.ckpt.files import torch_files
from holdfast.ckpt.files.torch_pickle import TensorRef
from holdfast.ckpt.files.unreadable_files import problem_of
from holdfast.ckpt.tensor_blocks import TensorReader
from holdfast.core.errors import CheckpointUnreadable

#: Larger values are represented by their size only.
_MAX_BYTES = 16 << 20
_MAX_PARTS = 1 << 21


class EmbeddedValues:
    """The embedded values of one checkpoint; errors go to ``problems``. A context manager."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.problems: list[FileProblem] = []
        self._known: dict[bytes, Any] = {}
        self._numbers: dict[bytes, float | int] = {}
        self._reader = TensorReader(root)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reader.__exit__(kind, error, trace)

    def value(self, key: str, file: str, offset: int, length: int) -> Any:
        """Return the value as plain data; None if it cannot be read."""
        if length > _MAX_BYTES:
            return f"<{length:,} bytes>"
        path = self._root / file
        try:
            handle = self._reader.handle(file)
            data = os.pread(handle, length, offset)
            if data not in self._known:
                parsed = torch_files.read_embedded_file(path, handle, offset, length).value
                self._known[data] = as_plain(parsed)
            return self._known[data]
        except OSError as error:
            self.problems.append(
                FileProblem(kind="unreadable", file=file, why=f"{key}: {error.strerror or error}")
            )
        except CheckpointUnreadable as error:
            self.problems.append(problem_of(error, file, what=key))
        return None

    def number(self, tensor: Tensor) -> float | int | None:
        """Return a one-element tensor as a number; None if it cannot be read."""
        shard = tensor.shards[0] if tensor.shards else None
        try:
            if shard is None or not shard.packed:
                return self._read(tensor)
            data = os.pread(self._reader.handle(shard.file), shard.packed, shard.offset)
            mark = data + tensor.dtype.encode()
            if mark not in self._numbers:
                self._numbers[mark] = self._read(tensor)
            return self._numbers[mark]
        except (OSError, CheckpointUnreadable) as error:
            why = error.why if isinstance(error, CheckpointUnreadable) else str(error)
            self.problems.append(
                FileProblem(
                    kind="unreadable", file=shard.file if shard else "", why=f"{tensor.name}: {why}"
                )
            )
            return None

    def _read(self, tensor: Tensor) -> float | int:
        number: float | int = self._reader.read_tensor(tensor).item()
        return number


def is_bounded(value: Any) -> bool:
    """Return whether the value has an acceptable size when traversed.

    A few lists that contain each other many times can expand to 2 ** 40 elements.
    """
    stack, left = [value], _MAX_PARTS
    while stack:
        item = stack.pop()
        if isinstance(item, (dict, list, tuple, set, frozenset)):
            left -= len(item)
            if left < 0:
                return False
            stack.extend(item.values() if isinstance(item, dict) else item)
    return True


def as_plain(value: Any) -> Any:
    """Return plain data unchanged, other values without their tensors and objects."""
    if not is_bounded(value):
        return "<too large>"
    return value if _is_plain(value) else torch_files.to_plain(value)


def _is_plain(value: Any, depth: int = 20) -> bool:
    """Return whether the value consists of numbers, text and containers."""
    if isinstance(value, dict):
        return depth > 0 and all(_is_plain(entry, depth - 1) for entry in value.values())
    if isinstance(value, (list, tuple)):
        return depth > 0 and all(_is_plain(item, depth - 1) for item in value)
    return isinstance(value, (str, int, float, bool, type(None))) and not isinstance(
        value, TensorRef
    )
