"""Checkpoints that are whole or absent.

Rank 0 writes to a temporary file beside the place, forces it to the disk, and renames it; a checksum beside it tells a
damaged one from a whole one later. All ranks wait until it is there.
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

KEPT = 3  # checkpoints kept; the newest may turn out to be damaged


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Writes the state (that of rank 0 counts) as the checkpoint of a step. Every rank must call it."""
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        torch.save(state, buffer)
        place = folder / f"step-{step:08d}.pt"
        _write(place.with_suffix(".sha256"), hashlib.sha256(buffer.getvalue()).hexdigest().encode())
        _write(place, buffer.getvalue())
        for old in sorted(folder.glob("step-*.pt"))[:-KEPT]:
            old.unlink()
            old.with_suffix(".sha256").unlink(missing_ok=True)
    dist.barrier()


def load_newest(folder: Path, device: torch.device) -> dict[str, Any] | None:
    """The newest whole checkpoint, or None where there is none. Rank 0 chooses, so that all ranks read the same one."""
    choice = [_newest_whole(folder) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(choice, device=device)
    if choice[0] is None:
        return None
    state: dict[str, Any] = torch.load(folder / choice[0], map_location="cpu", weights_only=True)
    return state


def _newest_whole(folder: Path) -> str | None:
    for place in sorted(folder.glob("step-*.pt"), reverse=True):
        checksum = place.with_suffix(".sha256")
        if checksum.exists() and checksum.read_text() == hashlib.sha256(place.read_bytes()).hexdigest():
            return place.name
        print(f"{place.name} is damaged; looking for an older one", flush=True)
    return None


def _write(place: Path, content: bytes) -> None:
    beside = place.with_name(place.name + ".tmp")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(place)
    descriptor = os.open(place.parent, os.O_RDONLY)  # the rename is on the disk only when the folder is
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
