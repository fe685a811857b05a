"""A place where checkpoints lie: a folder, or anything that fsspec reaches (``s3://``, ``gs://``, ``sftp://``, …).

All places hold the same: a folder a checkpoint, every file of it, and the manifest, which comes last and proves it. A
copy is verified while it is made: the source is hashed on the way, and the copy is read back and hashed again (a
folder's from the disk, not from memory).
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.parse import urlsplit

import xxhash

from holdfast import manifest
from holdfast.errors import CheckpointUnreadable, HoldfastError, MissingExtra, PlaceUnusable
from holdfast.manifest import Entry, Manifest
from holdfast.report.text import one_line
from holdfast.runtime.checkpoint import commit
from holdfast.runtime.checkpoint.storage import sync_folder

_PIECE_BYTES = 4 << 20
#: In memory as much again is left to others: data loaders die of a full /dev/shm.
_ROOM = 2.0
ASIDE = ".aside-"


class Place(Protocol):
    """Where checkpoints lie. Every method may raise PlaceUnusable, and take as long as a network takes."""

    #: For people; without what is secret in a URL.
    name: str

    def steps(self) -> list[int]:
        """The steps of what has the name of a checkpoint, the latest first; valid or not."""

    def manifest(self, step: int) -> Manifest:
        """The manifest of one. Raises CheckpointUnreadable: there is none, or none that is valid."""

    def put(self, source: Path, what: Manifest) -> None:
        """Copy a finished checkpoint here and verify it. Raises CheckpointUnreadable: the source is damaged."""

    def fetch(self, what: Manifest, entry: Entry, into: Path) -> None:
        """Copy one file into a staged folder. Raises CheckpointUnreadable: it is not what the manifest says."""

    def remove(self, step: int) -> None:
        """Remove a checkpoint; whoever looks meanwhile finds a whole one or none."""

    def set_aside(self, step: int) -> None:
        """Let a checkpoint be none any more, and keep its files."""


def place_of(where: str | os.PathLike[str]) -> Place:
    """The place that is meant: a URL with ``://`` in it, or a folder.

    Raises:
        MissingExtra: what fsspec needs for this kind of URL is not installed.
        PlaceUnusable: there is no such kind of URL.
    """
    return Remote(str(where)) if "://" in str(where) else Folder(Path(where))


class Folder:
    """A folder of this host, or one that hosts share. In memory (``durable=False``) nothing is synced to a disk."""

    def __init__(self, path: Path, *, name: str = "", durable: bool = True) -> None:
        self.path = path.expanduser().absolute()
        self.name = name or str(self.path)
        self._durable = durable

    def steps(self) -> list[int]:
        """See :class:`Place`."""
        return [manifest.step_of(path) or 0 for path in manifest.newest_first(self.path)]

    def folder(self, step: int) -> Path:
        """Where the checkpoint of a step lies."""
        return self.path / manifest.name_of(step)

    def manifest(self, step: int) -> Manifest:
        """See :class:`Place`."""
        return manifest.read(self.folder(step))

    def put(self, source: Path, what: Manifest) -> None:
        """See :class:`Place`."""
        with troubles(self.name):
            if self._has(what):
                return
            self._make_room(what)
            staged = self.staged("copy", what.step)
            try:
                for entry in what.files:
                    self._copy(source / entry.path, staged / entry.path, entry, what.step)
                self.declare(staged, what)
            finally:
                shutil.rmtree(staged, ignore_errors=True)

    def staged(self, purpose: str, step: int) -> Path:
        """A new folder beside the checkpoints, for one that is to come; what an earlier one left goes. OSError."""
        beginning = f"{manifest.STAGING}{purpose}-{manifest.name_of(step)}-"
        for old in self.path.glob(f"{beginning}*"):
            shutil.rmtree(old, ignore_errors=True)
        staged = self.path / f"{beginning}{secrets.token_hex(4)}"
        staged.mkdir(parents=True)
        return staged

    def declare(self, staged: Path, what: Manifest) -> Path:
        """Make a whole staged folder a checkpoint, in the place of one of its step. Raises OSError, MissingFile."""
        for folder in {path.parent for path in staged.rglob("*")}:
            sync_folder(folder)
        return commit.declare(staged, what)

    def fetch(self, what: Manifest, entry: Entry, into: Path) -> None:
        """See :class:`Place`."""
        with troubles(self.name):
            source = self.folder(what.step) / entry.path
            target = into / entry.path
            target.parent.mkdir(parents=True, exist_ok=True)
            with source.open("rb", buffering=0) as reader, target.open("xb", buffering=0) as writer:
                _hold(_copied(reader, _all_of(writer)), entry, source)
                os.fsync(writer.fileno())

    def remove(self, step: int) -> None:
        """See :class:`Place`."""
        with troubles(self.name):
            commit.discard(self.folder(step))

    def set_aside(self, step: int) -> None:
        """See :class:`Place`."""
        with troubles(self.name):
            self.folder(step).rename(self.path / f"{ASIDE}{manifest.name_of(step)}-{secrets.token_hex(4)}")

    def sweep(self) -> None:
        """Finish removals that were begun and not ended."""
        for old in self.path.glob(f"{commit.REMOVING}*"):
            shutil.rmtree(old, ignore_errors=True)

    def _has(self, what: Manifest) -> bool:
        with suppress(CheckpointUnreadable):
            found = self.manifest(what.step)
            return found.seal == what.seal and not any(manifest.damages(self.folder(what.step), found, contents=False))
        return False

    def _make_room(self, what: Manifest) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        state = os.statvfs(self.path)
        free, wanted = state.f_bavail * state.f_frsize, what.size * (1.0 if self._durable else _ROOM)
        if free < wanted:
            raise PlaceUnusable(self.name, why=f"{free / 1e9:.2f} GB are free, and {wanted / 1e9:.2f} GB are wanted")

    def _copy(self, source: Path, target: Path, entry: Entry, step: int) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with source.open("rb", buffering=0) as reader, target.open("xb", buffering=0) as writer:
            _hold(_copied(reader, _all_of(writer)), entry, source)
            if not self._durable:
                return  # what is in memory was hashed there
            os.fsync(writer.fileno())
            os.posix_fadvise(writer.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # to be read from the disk
        if manifest.hash_of(target) != entry.xxh3:
            why = f"{entry.path} of step {step} is not what was written when it is read back"
            raise PlaceUnusable(self.name, why=why)


class Remote:
    """Whatever fsspec reaches at ``url``. The manifest is written last, and deleted first."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec  # type: ignore[import-untyped]  # noqa: PLC0415 - slow to import
        except ImportError as error:
            raise MissingExtra("fsspec") from error  # it comes with torch
        self.name = _without_secrets(url)
        try:
            self._files, path = fsspec.core.url_to_fs(url)
        except ImportError as error:
            kind = url.partition("://")[0]
            raise MissingExtra(f"what fsspec needs for {kind}://", why=one_line(str(error)), next_step="") from error
        except ValueError as error:
            raise PlaceUnusable(self.name, why=one_line(str(error))) from error
        self._path = str(path).rstrip("/")

    def steps(self) -> list[int]:
        """See :class:`Place`."""
        with troubles(self.name):
            self._files.invalidate_cache()
            try:
                names = [str(path).rstrip("/").rpartition("/")[2] for path in self._files.ls(self._path, detail=False)]
            except FileNotFoundError:
                return []
            found = (manifest.step_of(Path(name)) for name in names)
            return sorted((step for step in found if step is not None), reverse=True)

    def manifest(self, step: int) -> Manifest:
        """See :class:`Place`."""
        where = f"{self.name}/{manifest.name_of(step)}"
        with troubles(self.name):
            try:
                with self._files.open(self._at(step, manifest.FILE), "rb") as stream:
                    data = stream.read(manifest.MOST_BYTES + 1)
            except FileNotFoundError as error:
                raise CheckpointUnreadable(where, why="it has no manifest, so that nobody finished it") from error
            return manifest.parse(data, where)

    def put(self, source: Path, what: Manifest) -> None:
        """See :class:`Place`."""
        with suppress(CheckpointUnreadable):
            if self.manifest(what.step).seal == what.seal:
                return
            self._take_manifest(what.step)  # of another checkpoint of the same step
        with troubles(self.name):
            for entry in what.files:
                self._upload(source / entry.path, self._at(what.step, entry.path), entry)
            self._files.pipe_file(self._at(what.step, manifest.FILE), manifest.sealed(what))
            if self.manifest(what.step).seal != what.seal:
                raise PlaceUnusable(self.name, why="the manifest is not what was written when it is read back")

    def fetch(self, what: Manifest, entry: Entry, into: Path) -> None:
        """See :class:`Place`."""
        target, source = into / entry.path, self._at(what.step, entry.path)
        with troubles(self.name):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with self._files.open(source, "rb") as reader, target.open("xb", buffering=0) as writer:
                    _hold(_copied(reader, _all_of(writer)), entry, source)
                    os.fsync(writer.fileno())
            except FileNotFoundError as error:
                raise CheckpointUnreadable(f"{self.name}/{manifest.name_of(what.step)}",
                                           why=f"{entry.path}: it is not there") from error  # fmt: skip

    def remove(self, step: int) -> None:
        """See :class:`Place`."""
        with troubles(self.name):
            self._take_manifest(step)
            self._files.rm(self._at(step), recursive=True)

    def set_aside(self, step: int) -> None:
        """See :class:`Place`."""
        with troubles(self.name):
            data = self._files.cat_file(self._at(step, manifest.FILE))  # not all kinds of storage can copy or rename
            self._files.pipe_file(self._at(step, f"{ASIDE}{manifest.FILE}"), data)
            self._take_manifest(step)

    def _take_manifest(self, step: int) -> None:
        with troubles(self.name), suppress(FileNotFoundError):
            self._files.rm_file(self._at(step, manifest.FILE))

    def _at(self, step: int, *parts: str) -> str:
        return "/".join((self._path, manifest.name_of(step), *parts))

    def _upload(self, source: Path, target: str, entry: Entry) -> None:
        self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
        with source.open("rb", buffering=0) as reader, self._files.open(target, "wb") as writer:
            _hold(_copied(reader, writer.write), entry, source)
        self._files.invalidate_cache()
        with self._files.open(target, "rb") as reader:
            size, found = _copied(reader, len)
        if (size, found) != (entry.size, entry.xxh3):
            raise PlaceUnusable(self.name, why=f"{entry.path} is not what was written when it is read back")


class troubles:  # noqa: N801 - reads as the with-block that it is
    """Whatever goes wrong in the block becomes PlaceUnusable, in one sentence; our own errors stay as they are."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, HoldfastError):
            raise PlaceUnusable(self._name, why=_why(error)) from error


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}" if error.filename else error.strerror.lower()
    return one_line(f"{type(error).__name__}: {error}".rstrip(": "))[:300]


def _copied(reader: BinaryIO | Any, write: Callable[[bytes], Any]) -> tuple[int, str]:
    """Copy all that can be read; its size in bytes and xxh3."""
    state, size = xxhash.xxh3_128(), 0
    for piece in _pieces(reader):
        state.update(piece)
        size += len(piece)
        write(piece)
    return size, state.hexdigest()


def _pieces(reader: BinaryIO | Any) -> Iterator[bytes]:
    while piece := reader.read(_PIECE_BYTES):
        yield piece


def _all_of(writer: Any) -> Callable[[bytes], None]:
    """Unbuffered files take a part of what they are given where the disk is nearly full."""

    def write(piece: bytes) -> None:
        left = memoryview(piece)
        while left:
            left = left[writer.write(left) :]

    return write


def _hold(found: tuple[int, str], entry: Entry, source: object) -> None:
    if found != (entry.size, entry.xxh3):
        why = f"it has {found[0]:,} bytes with the xxh3 {found[1]}, and {entry.size:,} with {entry.xxh3} were written"
        raise CheckpointUnreadable(source, why=why)


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}".rstrip("/")
