"""Save and load DeepSpeed engines, which write their own files into the staging folder.

The manifest covers these files (``deepspeed/…``). DeepSpeed's limits apply: the number of ranks is
fixed, and its own unpickling reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.core.checkpoint_manifest import ManifestEntry, hash_file
from holdfast.core.errors import CheckpointFailed
from holdfast.training.checkpoint.storage.shard_files import sync_path

_FOLDER = "deepspeed"


def is_engine(model: object) -> bool:
    """Return whether this is a DeepSpeedEngine, without importing DeepSpeed."""
    return any(
        base.__name__ == "DeepSpeedEngine" and base.__module__.startswith("deepspeed")
        for base in type(model).__mro__
    )


def save_engines(
    engines: Mapping[str, Any], folder: Path, rank: int, world: int
) -> list[ManifestEntry]:
    """Save each engine, on all ranks; return this rank's share of the files, synced and hashed.

    Raises OSError, and any error of DeepSpeed.
    """
    for name, engine in engines.items():
        engine.save_checkpoint(str(folder / _FOLDER), tag=name or "engine")  # ends with a barrier
    files = (
        sorted(path for path in (folder / _FOLDER).rglob("*") if path.is_file()) if engines else []
    )
    return [_sync_and_hash(path, folder) for path in files[rank::world]]


def _sync_and_hash(path: Path, folder: Path) -> ManifestEntry:
    sync_path(path)
    return ManifestEntry(
        path=path.relative_to(folder).as_posix(), size=path.stat().st_size, xxh3=hash_file(path)
    )


def load_engines(engines: Mapping[str, Any], folder: Path) -> None:
    """Load each engine, on all ranks together.

    Raises:
        CheckpointFailed: DeepSpeed found nothing to load; DeepSpeed's own errors pass through.
    """
    for name, engine in engines.items():
        path, _ = engine.load_checkpoint(str(folder / _FOLDER), tag=name or "engine")
        if path is None:
            raise CheckpointFailed(
                "loading a checkpoint", why=f"DeepSpeed found no checkpoint of engine {name!r}"
            )
