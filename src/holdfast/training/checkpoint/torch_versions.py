"""Names that differ between, or are private in, torch 2.4 to 2.13."""

from __future__ import annotations

from typing import Any

from torch.distributed.checkpoint import filesystem

from holdfast.core.errors import CheckpointFailed

try:
    from torch.distributed.tensor import DTensor
except ImportError:  # torch 2.4 (it moved with pull request 133113)
    from torch.distributed._tensor import DTensor  # type: ignore[attr-defined]

__all__ = ["DTensor", "storage_info"]


def storage_info(file: str, offset: int, length: int) -> Any:
    """Return a shard's location as torch's reader expects it. Raises CheckpointFailed."""
    info_class = getattr(filesystem, "_StorageInfo", None)
    if info_class is None:
        raise CheckpointFailed(
            "the save", why="this torch version stores tensor locations in an unknown format"
        )
    return info_class(file, offset, length)
