"""Checkpoints that are either complete or absent.

Rank 0 writes to a temporary file, syncs it to disk, and renames it; a checksum file detects damage
later. All ranks wait until the checkpoint exists.
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

KEPT = 3  # checkpoints retained, in case the newest is damaged


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write rank 0's state as the checkpoint of a step. Call it on every rank."""
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        torch.save(state, buffer)
        path = folder / f"step-{step:08d}.pt"
        _write(path.with_suffix(".sha256"), hashlib.sha256(buffer.getvalue()).hexdigest().encode())
        _write(path, buffer.getvalue())
        for old in sorted(folder.glob("step-*.pt"))[:-KEPT]:
            old.unlink()
            old.with_suffix(".sha256").unlink(missing_ok=True)
    dist.barrier()


def load_newest(folder: Path, device: torch.device) -> dict[str, Any] | None:
    """Return the newest valid checkpoint, or None. Rank 0 chooses for all ranks."""
    choice = [_newest_valid(folder) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(choice, device=device)
    if choice[0] is None:
        return None
    state: dict[str, Any] = torch.load(folder / choice[0], map_location="cpu", weights_only=True)
    return state


def _newest_valid(folder: Path) -> str | None:
    for path in sorted(folder.glob("step-*.pt"), reverse=True):
        checksum = path.with_suffix(".sha256")
        if (
            checksum.exists()
            and checksum.read_text() == hashlib.sha256(path.read_bytes()).hexdigest()
        ):
            return path.name
        print(f"{path.name} is damaged; trying an older one", flush=True)
    return None


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    # The rename is durable only after syncing the folder.
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
