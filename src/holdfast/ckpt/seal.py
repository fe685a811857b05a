"""Seals a checkpoint of any format: a manifest with the hash of every file, read by ``verify``.

A folder gets ``manifest.json``, as holdfast's own checkpoints and those of its callbacks have; a
single file gets ``NAME.manifest.json`` beside it. Formats without checksums (safetensors) have no
other evidence of a changed byte.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.ckpt.formats import registry
from holdfast.core import checkpoint_manifest
from holdfast.core.atomic_files import write_atomic
from holdfast.core.checkpoint_manifest import Damage, Manifest, ManifestEntry
from holdfast.core.documents import read_bounded
from holdfast.core.errors import CheckpointUnreadable, InvalidValue


class SealedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The result: the manifest at ``path`` covers ``files`` files of ``size`` bytes."""

    path: str
    files: int
    size: int
    step: int | None
    elapsed_s: float


def manifest_path(root: Path) -> Path:
    """Return where the manifest of the checkpoint at ``root`` is."""
    name = checkpoint_manifest.FILE
    return root / name if root.is_dir() else root.with_name(f"{root.name}.{name}")


def seal_checkpoint(path: Path, *, overwrite: bool = False) -> SealedCheckpoint:
    """Hash every file of the checkpoint at ``path`` and write its manifest.

    Raises:
        InvalidValue: it has a manifest already, which would hide a change since then.
        MissingFile, CheckpointUnreadable: it is no complete checkpoint.
    """
    started = time.monotonic()
    contents = registry.read_checkpoint(path)
    root = Path(contents.root)
    target = manifest_path(root)
    if contents.problems:
        why = f"it is incomplete: {contents.problems[0].file or root.name}"
        raise CheckpointUnreadable(root, why=f"{why}: {contents.problems[0].why}")
    if target.exists() and not overwrite:
        raise InvalidValue(
            str(path),
            why=f"{target} exists",
            next_step="run `holdfast ckpt verify` first, then use --overwrite",
        )
    folder = root if root.is_dir() else root.parent
    entries = tuple(
        ManifestEntry(
            path=file.relative_to(folder).as_posix(),
            size=file.stat().st_size,
            xxh3=checkpoint_manifest.hash_file(file),
        )
        for file in _files(root)
    )
    manifest = Manifest(
        step=contents.step if isinstance(contents.step, int) else 0,
        at=time.time(),
        ranks=contents.world_size if isinstance(contents.world_size, int) else 1,
        files=entries,
    )
    write_atomic(target, checkpoint_manifest.encode_sealed(manifest))
    return SealedCheckpoint(
        path=str(target),
        files=len(entries),
        size=manifest.size,
        step=contents.step if isinstance(contents.step, int) else None,
        elapsed_s=round(time.monotonic() - started, 3),
    )


def read_seal(root: Path) -> Manifest | None:
    """Return the manifest of the checkpoint at ``root``; None if it has none.

    Raises:
        CheckpointUnreadable: the manifest is damaged.
    """
    path = manifest_path(root)
    if not path.is_file():
        return None
    data = read_bounded(path, checkpoint_manifest.MAX_BYTES)
    return checkpoint_manifest.parse_manifest(data, root)


def find_damage(root: Path, manifest: Manifest, *, contents: bool) -> Iterator[Damage]:
    """Yield each file that differs from the manifest; without ``contents``, only by its size."""
    folder = root if root.is_dir() else root.parent
    yield from checkpoint_manifest.find_damage(folder, manifest, contents=contents)


def _files(root: Path) -> list[Path]:
    if not root.is_dir():
        return [root]
    own = manifest_path(root)
    return sorted(path for path in root.rglob("*") if path.is_file() and path != own)
