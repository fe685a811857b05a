"""What torch 2.4 to 2.13 call differently, or keep to themselves: named here once, and guarded."""

from __future__ import annotations

from typing import Any

from torch.distributed.checkpoint import filesystem

from holdfast.errors import CheckpointFailed

try:
    from torch.distributed.tensor import DTensor
except ImportError:  # torch 2.4 (it moved with pull request 133113)
    from torch.distributed._tensor import DTensor  # type: ignore[attr-defined]

__all__ = ["DTensor", "place_of"]


def place_of(file: str, offset: int, length: int) -> Any:
    """Where a piece stands, as torch's own reader wants it. Raises CheckpointFailed: this torch has another form."""
    kind = getattr(filesystem, "_StorageInfo", None)
    if kind is None:
        raise CheckpointFailed("the save", why="this torch keeps the places of tensors in a form unknown here")
    return kind(file, offset, length)
