"""DeepSpeed's engines save and load themselves, into the staged folder; the manifest proves what they wrote.

Their files are DeepSpeed's own (``deepspeed/…``), with its limits: as many ranks as saved, and read by its unpickling.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import CheckpointFailed
from holdfast.manifest import Entry, hash_of

_FOLDER = "deepspeed"


def is_engine(model: object) -> bool:
    """Whether this is a DeepSpeedEngine; nothing is imported to find out."""
    return any(
        each.__name__ == "DeepSpeedEngine" and each.__module__.startswith("deepspeed") for each in type(model).__mro__
    )


def save(engines: Mapping[str, Any], folder: Path, rank: int, world: int) -> list[Entry]:
    """Let each engine save itself, all ranks together; this rank's share of the files, synced and hashed.

    Raises OSError, and whatever DeepSpeed does.
    """
    for name, engine in engines.items():
        engine.save_checkpoint(str(folder / _FOLDER), tag=name or "engine")  # ends with a barrier
    files = sorted(path for path in (folder / _FOLDER).rglob("*") if path.is_file()) if engines else []
    return [_synced(path, folder) for path in files[rank::world]]


def _synced(path: Path, folder: Path) -> Entry:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return Entry(path=path.relative_to(folder).as_posix(), size=path.stat().st_size, xxh3=hash_of(path))


def load(engines: Mapping[str, Any], folder: Path) -> None:
    """Let each engine load itself, all ranks together.

    Raises:
        CheckpointFailed: DeepSpeed found nothing to load; and whatever DeepSpeed raises.
    """
    for name, engine in engines.items():
        path, _ = engine.load_checkpoint(str(folder / _FOLDER), tag=name or "engine")
        if path is None:
            raise CheckpointFailed("loading a checkpoint", why=f"DeepSpeed found none for its engine {name!r}")
