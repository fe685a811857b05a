"""The manifest: what proves a checkpoint whole. Written inside the job, read by the job and outside it.

    <checkpoints>/step-0000000120/            a checkpoint, because it has a valid manifest
        manifest.json                         every file's size and xxh3, and a seal over the manifest itself
        .metadata, __0_0.distcp, …            what torch.distributed.checkpoint wrote: any torch can load it
        rank-00000.state                      of each rank: random states, position in the data
    <checkpoints>/.staging-step-0000000130-…  one that is being written, or was when its writer died

A folder without a valid manifest is no checkpoint, whatever its name. The last act of saving is one rename of the
staged folder, after every byte in it was synced to the disk.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import msgspec
import xxhash

from holdfast.errors import CheckpointUnreadable, CheckpointVersion
from holdfast.report.files import write_whole

SCHEMA = "holdfast/checkpoint/1"
FILE = "manifest.json"
STAGING = ".staging-"
MOST_BYTES = 64 << 20
_READ_BYTES = 1 << 20
_NAME = re.compile(r"step-(\d{10,})\Z")

_Hash = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}$")]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One file: its path inside of the checkpoint, its size in bytes, and the xxh3 (128 bits, hex) of its content."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    size: _Count
    xxh3: _Hash


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a checkpoint. ``step`` optimizer steps were done; ``values`` is for people.

    The save ``began`` and was finished ``at`` these Unix seconds.

    ``ranks`` wrote it (any number may load it); ``seal`` is the xxh3 of the same manifest with an empty seal.
    """

    schema: str = SCHEMA
    step: _Count
    began: float = 0.0
    at: float = 0.0
    ranks: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)] = 1
    run: str = ""
    generation: _Count = 0
    torch: str = ""
    files: tuple[Entry, ...] = ()
    values: dict[str, Any] = {}
    seal: str = ""

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(entry.size for entry in self.files)


class Damage(msgspec.Struct, frozen=True):
    """What is wrong with one file of a checkpoint: ``missing``, ``truncated``, ``changed`` or ``unreadable``."""

    path: str
    kind: str
    why: str


def name_of(step: int) -> str:
    """The name of the folder of the checkpoint at ``step``."""
    return f"step-{step:010d}"


def step_of(folder: Path) -> int | None:
    """The step that a folder's name says; None where it is no name of a checkpoint."""
    match = _NAME.match(folder.name)
    return int(match[1]) if match else None


def sealed(manifest: Manifest) -> bytes:
    """The content of the file, with its seal."""
    return (
        msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(manifest, seal=_seal(manifest))), indent=1)
        + b"\n"
    )


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest into a staged folder, synced; the folder becomes a checkpoint when it is renamed.

    Raises:
        MissingFile: it cannot be written.
    """
    write_whole(folder / FILE, sealed(manifest))


def parse(data: bytes, name: object) -> Manifest:
    """The manifest in ``data``, whose seal holds.

    Raises:
        CheckpointVersion: it is of a newer version.
        CheckpointUnreadable: it is none, changed, or names files outside of the checkpoint.
    """
    why = f"its manifest has more than {MOST_BYTES >> 20} MiB" if len(data) > MOST_BYTES else ""
    try:
        found = msgspec.json.decode(data, type=Manifest) if not why else Manifest(step=0)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointUnreadable(name, why=f"its manifest cannot be read: {error}") from error
    if not why and found.schema != SCHEMA:
        raise CheckpointVersion(
            name, why=f"it is of the form {found.schema[:40]!r}, and this holdfast knows {SCHEMA!r}"
        )
    if not why and found.seal != _seal(found):
        why = "its manifest was changed after it was written"
    elif not why:
        why = next((f"its manifest names {entry.path!r}" for entry in found.files if not _inside(entry.path)), "")
    if why:
        raise CheckpointUnreadable(name, why=why)
    return found


def read(folder: Path) -> Manifest:
    """The manifest of the checkpoint in ``folder``, which proves it complete once :func:`damages` finds nothing.

    Raises:
        CheckpointUnreadable: there is none, or none that is valid.
    """
    try:
        if not stat.S_ISREG((folder / FILE).stat().st_mode):  # a pipe would be waited for
            raise CheckpointUnreadable(folder, why="its manifest is no file")
        with (folder / FILE).open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise CheckpointUnreadable(folder, why="it has no manifest, so that nobody finished it") from error
    except OSError as error:
        raise CheckpointUnreadable(folder, why=f"its manifest: {(error.strerror or str(error)).lower()}") from error
    return parse(data, folder)


def damages(
    folder: Path, manifest: Manifest, *, contents: bool = True, hashed: Callable[[Path], str] | None = None
) -> Iterator[Damage]:
    """Hold every file against the manifest: sizes alone in microseconds, or ``contents`` too, at the disk's speed.

    ``hashed`` gives the hash of a file in the place of :func:`hash_of`, and raises OSError as well.
    """
    for entry in manifest.files:
        path = folder / entry.path
        try:
            about = path.stat()
            size = about.st_size
            if not stat.S_ISREG(about.st_mode):
                yield Damage(entry.path, "unreadable", "it is no file")
            elif size != entry.size:
                kind = "truncated" if size < entry.size else "changed"
                yield Damage(entry.path, kind, f"it has {size:,} bytes of {entry.size:,}")
            elif contents and (found := (hashed or hash_of)(path)) != entry.xxh3:
                yield Damage(entry.path, "changed", f"its xxh3 is {found}, and {entry.xxh3} was written")
        except FileNotFoundError:
            yield Damage(entry.path, "missing", "it is not there")
        except OSError as error:
            yield Damage(entry.path, "unreadable", (error.strerror or str(error)).lower())


def newest_first(root: Path) -> list[Path]:
    """The folders under ``root`` that have the name of a checkpoint, the latest step first; valid or not."""
    try:
        found = [path for path in root.iterdir() if step_of(path) is not None]
    except OSError:
        return []
    return sorted(found, key=lambda path: step_of(path) or 0, reverse=True)


def hash_of(path: Path) -> str:
    """The xxh3 (128 bits, hex) of a file. Raises OSError."""
    state = xxhash.xxh3_128()
    room = memoryview(bytearray(_READ_BYTES))  # one for all, which stays in the processor's cache
    with path.open("rb", buffering=0) as stream:
        while size := stream.readinto(room):
            state.update(room[:size])
    return state.hexdigest()


def _seal(manifest: Manifest) -> str:
    plain = msgspec.json.encode(msgspec.structs.replace(manifest, seal=""), order="deterministic")
    return xxhash.xxh3_128_hexdigest(plain)


def _inside(path: str) -> bool:
    pure = PurePosixPath(path)
    return not pure.is_absolute() and ".." not in pure.parts and "\0" not in path
