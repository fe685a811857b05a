"""The manifest, which makes a checkpoint verifiable; written by the job, read anywhere.

    <checkpoints>/step-0000000120/            a checkpoint, because it has a valid manifest
        manifest.json                         size and xxh3 of every file, and a seal over the
            manifest .metadata, __0_0.distcp, …            written by torch.distributed.checkpoint;
            torch can load it rank-00000.state                      per rank: random states and data
            position
    <checkpoints>/.staging-step-0000000130-…  being written, or left by a writer that died

A folder without a valid manifest is not a checkpoint, whatever its name. Saving ends with one
rename of the staged folder, after every byte in it was synced to disk.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import msgspec
import xxhash

from holdfast.core.atomic_files import write_atomic
from holdfast.core.documents import decode_document, read_bounded
from holdfast.core.errors import CheckpointUnreadable, CheckpointVersion
from holdfast.core.text import os_error_reason

SCHEMA = "holdfast/checkpoint/1"
FILE = "manifest.json"
STAGING = ".staging-"
MAX_BYTES = 64 << 20
_READ_BYTES = 1 << 20
_NAME = re.compile(r"step-(\d{10,})\Z")

_Hash = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}$")]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class ManifestEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file: path inside the checkpoint, size in bytes, xxh3 (128 bits, hex) of its content."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    size: _Count
    xxh3: _Hash


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a checkpoint after ``step`` optimizer steps; ``values`` is for people.

    The save ``began`` and finished ``at`` these Unix seconds. ``ranks`` wrote it; any number may
    load it. ``seal`` is the xxh3 of the same manifest with an empty seal.
    """

    schema: str = SCHEMA
    step: _Count
    began: float = 0.0
    at: float = 0.0
    ranks: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)] = 1
    run: str = ""
    generation: _Count = 0
    torch: str = ""
    files: tuple[ManifestEntry, ...] = ()
    values: dict[str, Any] = {}
    seal: str = ""

    @property
    def size(self) -> int:
        """Return the total size of all files in bytes."""
        return sum(entry.size for entry in self.files)


class Damage(msgspec.Struct, frozen=True):
    """A damaged file of a checkpoint: ``missing``, ``truncated``, ``changed`` or ``unreadable``."""

    path: str
    kind: str
    why: str


def folder_name(step: int) -> str:
    """Return the folder name of the checkpoint at ``step``."""
    return f"step-{step:010d}"


def step_of_folder(folder: Path) -> int | None:
    """Return the step in a folder's name; None if it is not a checkpoint's name."""
    match = _NAME.match(folder.name)
    return int(match[1]) if match else None


def encode_sealed(manifest: Manifest) -> bytes:
    """Return the content of the file, with its seal."""
    return (
        msgspec.json.format(
            msgspec.json.encode(msgspec.structs.replace(manifest, seal=_seal(manifest))), indent=1
        )
        + b"\n"
    )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest into a staged folder, synced; renaming the folder commits the checkpoint.

    Raises:
        MissingFile: the file cannot be written.
    """
    write_atomic(folder / FILE, encode_sealed(manifest))


def parse_manifest(data: bytes, name: object) -> Manifest:
    """Parse a manifest and verify its seal; ``name`` is the checkpoint's, for errors.

    Raises:
        CheckpointVersion: the format version is newer.
        CheckpointUnreadable: it is invalid, was modified, or names files outside the checkpoint.
    """

    def unreadable(problem: str) -> CheckpointUnreadable:
        return CheckpointUnreadable(name, why=f"its manifest {problem}")

    def wrong_version(problem: str) -> CheckpointVersion:
        return CheckpointVersion(name, why=f"its manifest {problem}")

    manifest = decode_document(
        data,
        Manifest,
        schema=SCHEMA,
        max_bytes=MAX_BYTES,
        error=unreadable,
        version_error=wrong_version,
    )
    if manifest.seal != _seal(manifest):
        raise unreadable("was modified after it was written")
    for entry in manifest.files:
        if not _is_inside(entry.path):
            raise unreadable(f"names {entry.path!r}, outside the checkpoint")
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest in ``folder``.

    The checkpoint is complete if :func:`find_damage` yields nothing.

    Raises:
        CheckpointUnreadable: it is missing or invalid.
    """
    try:
        if not stat.S_ISREG((folder / FILE).stat().st_mode):  # reading a pipe would block
            raise CheckpointUnreadable(folder, why="its manifest is not a regular file")
        data = read_bounded(folder / FILE, MAX_BYTES)
    except FileNotFoundError as error:
        raise CheckpointUnreadable(
            folder, why="it has no manifest: the save did not finish"
        ) from error
    except OSError as error:
        raise CheckpointUnreadable(folder, why=f"its manifest: {os_error_reason(error)}") from error
    return parse_manifest(data, folder)


def find_damage(
    folder: Path,
    manifest: Manifest,
    *,
    contents: bool = True,
    hashed: Callable[[Path], str] | None = None,
) -> Iterator[Damage]:
    """Compare every file with the manifest: its size, and with ``contents`` its hash too.

    Sizes take microseconds; hashing runs at disk speed.

    ``hashed`` replaces :func:`hash_file`; it may raise OSError too.
    """
    for entry in manifest.files:
        path = folder / entry.path
        try:
            about = path.stat()
            size = about.st_size
            if not stat.S_ISREG(about.st_mode):
                yield Damage(entry.path, "unreadable", "not a regular file")
            elif size != entry.size:
                kind = "truncated" if size < entry.size else "changed"
                yield Damage(entry.path, kind, f"{size:,} bytes instead of {entry.size:,}")
            elif contents and (actual := (hashed or hash_file)(path)) != entry.xxh3:
                yield Damage(entry.path, "changed", f"its xxh3 is {actual} instead of {entry.xxh3}")
        except FileNotFoundError:
            yield Damage(entry.path, "missing", "no such file")
        except OSError as error:
            yield Damage(entry.path, "unreadable", os_error_reason(error))


def folders_newest_first(root: Path) -> list[Path]:
    """Return the folders under ``root`` with a checkpoint's name, latest step first.

    Valid or not.
    """
    try:
        folders = [path for path in root.iterdir() if step_of_folder(path) is not None]
    except OSError:
        return []
    return sorted(folders, key=lambda path: step_of_folder(path) or 0, reverse=True)


def hash_file(path: Path) -> str:
    """Return the xxh3 (128 bits, hex) of a file. Raises OSError."""
    state = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_READ_BYTES))  # one for all: it stays in the CPU cache
    with path.open("rb", buffering=0) as stream:
        while size := stream.readinto(buffer):
            state.update(buffer[:size])
    return state.hexdigest()


def _seal(manifest: Manifest) -> str:
    unsealed = msgspec.json.encode(
        msgspec.structs.replace(manifest, seal=""), order="deterministic"
    )
    return xxhash.xxh3_128_hexdigest(unsealed)


def _is_inside(path: str) -> bool:
    posix_path = PurePosixPath(path)
    return not posix_path.is_absolute() and ".." not in posix_path.parts and "\0" not in path
