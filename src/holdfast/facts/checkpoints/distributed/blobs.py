"""Small values that stand in files as whole files of torch.save: read once each, however many keys have the same.

A checkpoint of torch.distributed.checkpoint has thousands of them: a step for each parameter, a dozen options for each
group. Most are the same bytes.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Gap, Tensor
from holdfast.facts.checkpoints.files import torch_files
from holdfast.facts.checkpoints.files.gaps import gap_of
from holdfast.facts.checkpoints.files.torch_pickle import TensorAt
from holdfast.facts.checkpoints.pieces import Reader

#: A value that is larger is told by its size alone.
_MOST_BYTES = 16 << 20
_MOST_PARTS = 1 << 21


class Blobs:
    """Values in the files of one checkpoint; what cannot be read is told in ``gaps``. A context manager."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.gaps: list[Gap] = []
        self._known: dict[bytes, Any] = {}
        self._numbers: dict[bytes, float | int] = {}
        self._reader = Reader(root)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.__exit__(kind, error, trace)

    def value(self, key: str, file: str, offset: int, length: int) -> Any:
        """The value that stands there, plain; None where it cannot be read."""
        if length > _MOST_BYTES:
            return f"<{length:,} bytes>"
        path = self._root / file
        try:
            handle = self._reader.handle(file)
            data = os.pread(handle, length, offset)
            if data not in self._known:
                found = torch_files.read_window(path, handle, offset, length).value
                self._known[data] = as_plain(found)
            return self._known[data]
        except OSError as error:
            self.gaps.append(Gap(kind="unreadable", file=file, why=f"{key}: {error.strerror or error}"))
        except CheckpointUnreadable as error:
            self.gaps.append(gap_of(error, file, what=key))
        return None

    def number(self, tensor: Tensor) -> float | int | None:
        """A tensor of one element as a number."""
        piece = tensor.pieces[0] if tensor.pieces else None
        try:
            if piece is None or not piece.packed:
                return self._read(tensor)
            data = os.pread(self._reader.handle(piece.file), piece.packed, piece.offset)
            mark = data + tensor.dtype.encode()
            if mark not in self._numbers:
                self._numbers[mark] = self._read(tensor)
            return self._numbers[mark]
        except (OSError, CheckpointUnreadable) as error:
            why = error.why if isinstance(error, CheckpointUnreadable) else str(error)
            self.gaps.append(Gap(kind="unreadable", file=piece.file if piece else "", why=f"{tensor.name}: {why}"))
            return None

    def _read(self, tensor: Tensor) -> float | int:
        found: float | int = self._reader.whole(tensor).item()
        return found


def is_bounded(value: Any) -> bool:
    """It has no more parts than a checkpoint may: a few lists that hold each other many times have 2 ** 40."""
    stack, left = [value], _MOST_PARTS
    while stack:
        each = stack.pop()
        if isinstance(each, (dict, list, tuple, set, frozenset)):
            left -= len(each)
            if left < 0:
                return False
            stack.extend(each.values() if isinstance(each, dict) else each)
    return True


def as_plain(value: Any) -> Any:
    """A value of a pickle as it is where it is plain data, else without its tensors and objects."""
    if not is_bounded(value):
        return "<more than can be>"
    return value if _is_plain(value) else torch_files.plain(value)


def _is_plain(value: Any, depth: int = 20) -> bool:
    """Numbers, texts and containers of them, as they are."""
    if isinstance(value, dict):
        return depth > 0 and all(_is_plain(each, depth - 1) for each in value.values())
    if isinstance(value, (list, tuple)):
        return depth > 0 and all(_is_plain(each, depth - 1) for each in value)
    return isinstance(value, (str, int, float, bool, type(None))) and not isinstance(value, TensorAt)
