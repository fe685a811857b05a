"""Storage backends: a folder, or a URL that fsspec supports (``s3://``, ``sftp://``, …).

All backends have one layout: a folder per checkpoint with every file, and the manifest, written
last. A copy is verified: the source is hashed while it is read, and the copy is read back and
hashed again (in a folder from the disk, not from the page cache).
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

from holdfast.core import checkpoint_manifest
from holdfast.core.checkpoint_manifest import Manifest, ManifestEntry
from holdfast.core.errors import CheckpointUnreadable, HoldfastError, MissingExtra, StorageUnusable
from holdfast.core.text import one_line
from holdfast.training.checkpoint.storage import commit
from holdfast.training.checkpoint.storage.shard_files import sync_path

_CHUNK_BYTES = 4 << 20
#: Free memory required, as a multiple: data loaders crash when /dev/shm is full.
_MEMORY_HEADROOM = 2.0
QUARANTINE_PREFIX = ".aside-"


class StorageBackend(Protocol):
    """Where checkpoints are stored.

    Every method may raise StorageUnusable and take as long as a network operation.
    """

    #: Display name, without the secrets of a URL.
    name: str

    def steps(self) -> list[int]:
        """List the steps of all checkpoints, newest first; valid or not."""

    def manifest(self, step: int) -> Manifest:
        """Return a checkpoint's manifest. Raises CheckpointUnreadable: missing or invalid."""

    def put(self, source: Path, manifest: Manifest) -> None:
        """Copy and verify a checkpoint. Raises CheckpointUnreadable: damaged source."""

    def fetch(self, manifest: Manifest, entry: ManifestEntry, target_folder: Path) -> None:
        """Copy one file into a staging folder. Raises CheckpointUnreadable: does not match."""

    def remove(self, step: int) -> None:
        """Delete a checkpoint; readers find a complete one or none."""

    def quarantine(self, step: int) -> None:
        """Make a checkpoint invisible to searches, but keep its files."""


def open_backend(location: str | os.PathLike[str]) -> StorageBackend:
    """Return the backend for a URL (contains ``://``) or a folder.

    Raises:
        MissingExtra: the package that fsspec needs for this URL is not installed.
        StorageUnusable: the URL scheme is unknown.
    """
    return RemoteBackend(str(location)) if "://" in str(location) else FolderBackend(Path(location))


class FolderBackend:
    """A local or shared folder. In memory (``durable=False``) nothing is synced to disk."""

    def __init__(self, path: Path, *, name: str = "", durable: bool = True) -> None:
        self.path = path.expanduser().absolute()
        self.name = name or str(self.path)
        self._durable = durable

    def steps(self) -> list[int]:
        """See :class:`StorageBackend`."""
        return [
            checkpoint_manifest.step_of_folder(path) or 0
            for path in checkpoint_manifest.folders_newest_first(self.path)
        ]

    def folder(self, step: int) -> Path:
        """Return the path of the checkpoint of a step."""
        return self.path / checkpoint_manifest.folder_name(step)

    def manifest(self, step: int) -> Manifest:
        """See :class:`StorageBackend`."""
        return checkpoint_manifest.read_manifest(self.folder(step))

    def put(self, source: Path, manifest: Manifest) -> None:
        """See :class:`StorageBackend`."""
        with storage_errors(self.name):
            if self._has(manifest):
                return
            self._check_space(manifest)
            staging = self.create_staging_folder("copy", manifest.step)
            try:
                for entry in manifest.files:
                    self._copy(
                        source / entry.path,
                        staging / entry.path,
                        entry,
                        manifest.step,
                    )
                self.commit(staging, manifest)
            finally:
                shutil.rmtree(staging, ignore_errors=True)

    def create_staging_folder(self, purpose: str, step: int) -> Path:
        """Create a staging folder, deleting those of interrupted copies. Raises OSError."""
        prefix = f"{checkpoint_manifest.STAGING}{purpose}-"
        for leftover in self.path.glob(f"{prefix}*"):  # a location has one writer at a time
            shutil.rmtree(leftover, ignore_errors=True)
        name = f"{prefix}{checkpoint_manifest.folder_name(step)}-{secrets.token_hex(4)}"
        staging = self.path / name
        staging.mkdir(parents=True)
        return staging

    def commit(self, staging: Path, manifest: Manifest) -> Path:
        """Commit a staging folder, replacing one of its step. Raises OSError, MissingFile."""
        for folder in {path.parent for path in staging.rglob("*")}:
            sync_path(folder)
        return commit.commit_checkpoint(staging, manifest)

    def fetch(self, manifest: Manifest, entry: ManifestEntry, target_folder: Path) -> None:
        """See :class:`StorageBackend`."""
        with storage_errors(self.name):
            source = self.folder(manifest.step) / entry.path
            target = target_folder / entry.path
            target.parent.mkdir(parents=True, exist_ok=True)
            with source.open("rb", buffering=0) as reader, target.open("xb", buffering=0) as writer:
                _check_copy(_copy_hashed(reader, _write_fully(writer)), entry, source)
                os.fsync(writer.fileno())

    def remove(self, step: int) -> None:
        """See :class:`StorageBackend`."""
        with storage_errors(self.name):
            commit.discard(self.folder(step))

    def quarantine(self, step: int) -> None:
        """See :class:`StorageBackend`."""
        with storage_errors(self.name):
            name = f"{checkpoint_manifest.folder_name(step)}-{secrets.token_hex(4)}"
            self.folder(step).rename(self.path / f"{QUARANTINE_PREFIX}{name}")

    def sweep(self) -> None:
        """Finish interrupted deletions."""
        for leftover in self.path.glob(f"{commit.REMOVING}*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def _has(self, manifest: Manifest) -> bool:
        with suppress(CheckpointUnreadable):
            actual = self.manifest(manifest.step)
            return actual.seal == manifest.seal and not any(
                checkpoint_manifest.find_damage(self.folder(manifest.step), actual, contents=False)
            )
        return False

    def _check_space(self, manifest: Manifest) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        state = os.statvfs(self.path)
        free, needed = (
            state.f_bavail * state.f_frsize,
            manifest.size * (1.0 if self._durable else _MEMORY_HEADROOM),
        )
        if free < needed:
            raise StorageUnusable(
                self.name, why=f"{free / 1e9:.2f} GB free, {needed / 1e9:.2f} GB needed"
            )

    def _copy(self, source: Path, target: Path, entry: ManifestEntry, step: int) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with source.open("rb", buffering=0) as reader, target.open("xb", buffering=0) as writer:
            _check_copy(_copy_hashed(reader, _write_fully(writer)), entry, source)
            if not self._durable:
                return  # files in memory were hashed there
            os.fsync(writer.fileno())
            # Drop the pages, so that the verification reads from the disk.
            os.posix_fadvise(writer.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if checkpoint_manifest.hash_file(target) != entry.xxh3:
            why = f"{entry.path} of step {step} differs from what was written when read back"
            raise StorageUnusable(self.name, why=why)


#: fsspec's protocols whose paths begin with a bucket or container, which no write creates.
_BUCKET_PROTOCOLS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "az", "adl", "oss", "oci"})


class RemoteBackend:
    """A URL, through fsspec. The manifest is written last and deleted first."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec  # type: ignore[import-untyped]  # noqa: PLC0415 - slow to import
        except ImportError as error:
            raise MissingExtra("fsspec") from error  # fsspec is a dependency of torch
        self.name = _without_secrets(url)
        try:
            self._files, path = fsspec.core.url_to_fs(url)
        except ImportError as error:
            scheme = url.partition("://")[0]
            raise MissingExtra(
                f"the fsspec backend for {scheme}://", why=one_line(str(error)), next_step=""
            ) from error
        except ValueError as error:
            raise StorageUnusable(self.name, why=one_line(str(error))) from error
        self._path = str(path).rstrip("/")

    def steps(self) -> list[int]:
        """See :class:`StorageBackend`."""
        with storage_errors(self.name):
            self._files.invalidate_cache()
            try:
                names = [
                    str(path).rstrip("/").rpartition("/")[2]
                    for path in self._files.ls(self._path, detail=False)
                ]
            except FileNotFoundError:
                self._require_bucket()
                return []
            steps = (checkpoint_manifest.step_of_folder(Path(name)) for name in names)
            return sorted((step for step in steps if step is not None), reverse=True)

    def _require_bucket(self) -> None:
        """Raise StorageUnusable if the bucket is missing: it may have had checkpoints.

        A folder of an object store without objects does not exist either, and is empty.
        """
        protocols = (
            {self._files.protocol}
            if isinstance(self._files.protocol, str)
            else set(self._files.protocol)
        )
        bucket = self._path.partition("/")[0]
        if protocols & _BUCKET_PROTOCOLS and not self._files.exists(bucket):
            raise StorageUnusable(self.name, why=f"there is no bucket {bucket}")

    def manifest(self, step: int) -> Manifest:
        """See :class:`StorageBackend`."""
        location = f"{self.name}/{checkpoint_manifest.folder_name(step)}"
        with storage_errors(self.name):
            try:
                with self._files.open(
                    self._remote_path(step, checkpoint_manifest.FILE), "rb"
                ) as stream:
                    data = stream.read(checkpoint_manifest.MAX_BYTES + 1)
            except FileNotFoundError as error:
                raise CheckpointUnreadable(
                    location, why="no manifest: it was never completed"
                ) from error
            return checkpoint_manifest.parse_manifest(data, location)

    def put(self, source: Path, manifest: Manifest) -> None:
        """See :class:`StorageBackend`."""
        with suppress(CheckpointUnreadable):
            if self.manifest(manifest.step).seal == manifest.seal:
                return
            self._delete_manifest(manifest.step)  # of another checkpoint of the same step
        with storage_errors(self.name):
            for entry in manifest.files:
                self._upload(
                    source / entry.path, self._remote_path(manifest.step, entry.path), entry
                )
            self._files.pipe_file(
                self._remote_path(manifest.step, checkpoint_manifest.FILE),
                checkpoint_manifest.encode_sealed(manifest),
            )
            if self.manifest(manifest.step).seal != manifest.seal:
                raise StorageUnusable(
                    self.name, why="the manifest differs from what was written when read back"
                )

    def fetch(self, manifest: Manifest, entry: ManifestEntry, target_folder: Path) -> None:
        """See :class:`StorageBackend`."""
        target, source = target_folder / entry.path, self._remote_path(manifest.step, entry.path)
        with storage_errors(self.name):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with (
                    self._files.open(source, "rb") as reader,
                    target.open("xb", buffering=0) as writer,
                ):
                    _check_copy(_copy_hashed(reader, _write_fully(writer)), entry, source)
                    os.fsync(writer.fileno())
            except FileNotFoundError as error:
                raise CheckpointUnreadable(
                    f"{self.name}/{checkpoint_manifest.folder_name(manifest.step)}",
                    why=f"missing file {entry.path}",
                ) from error

    def remove(self, step: int) -> None:
        """See :class:`StorageBackend`."""
        with storage_errors(self.name):
            self._delete_manifest(step)
            self._files.rm(self._remote_path(step), recursive=True)

    def quarantine(self, step: int) -> None:
        """See :class:`StorageBackend`."""
        with storage_errors(self.name):
            # Not every storage can copy or rename.
            data = self._files.cat_file(self._remote_path(step, checkpoint_manifest.FILE))
            self._files.pipe_file(
                self._remote_path(step, f"{QUARANTINE_PREFIX}{checkpoint_manifest.FILE}"), data
            )
            self._delete_manifest(step)

    def _delete_manifest(self, step: int) -> None:
        with storage_errors(self.name), suppress(FileNotFoundError):
            self._files.rm_file(self._remote_path(step, checkpoint_manifest.FILE))

    def _remote_path(self, step: int, *parts: str) -> str:
        return "/".join((self._path, checkpoint_manifest.folder_name(step), *parts))

    def _upload(self, source: Path, target: str, entry: ManifestEntry) -> None:
        self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
        with source.open("rb", buffering=0) as reader, self._files.open(target, "wb") as writer:
            _check_copy(_copy_hashed(reader, writer.write), entry, source)
        self._files.invalidate_cache()
        with self._files.open(target, "rb") as reader:
            size, actual = _copy_hashed(reader, len)
        if (size, actual) != (entry.size, entry.xxh3):
            raise StorageUnusable(
                self.name, why=f"{entry.path} differs from what was written when read back"
            )


class storage_errors:  # noqa: N801 - reads as the with-block that it is
    """Convert errors in the with-block to StorageUnusable; holdfast's own pass through."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, HoldfastError):
            raise StorageUnusable(self._name, why=_describe_error(error)) from error


def _describe_error(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return (
            f"{error.filename}: {error.strerror.lower()}"
            if error.filename
            else error.strerror.lower()
        )
    return one_line(f"{type(error).__name__}: {error}".rstrip(": "))[:300]


def _copy_hashed(reader: BinaryIO | Any, write: Callable[[bytes], Any]) -> tuple[int, str]:
    """Copy everything readable; return its size in bytes and xxh3."""
    state, size = xxhash.xxh3_128(), 0
    for chunk in _chunks(reader):
        state.update(chunk)
        size += len(chunk)
        write(chunk)
    return size, state.hexdigest()


def _chunks(reader: BinaryIO | Any) -> Iterator[bytes]:
    while chunk := reader.read(_CHUNK_BYTES):
        yield chunk


def _write_fully(writer: Any) -> Callable[[bytes], None]:
    """Return a write function that retries partial writes, as on a nearly full disk."""

    def write(chunk: bytes) -> None:
        remaining = memoryview(chunk)
        while remaining:
            remaining = remaining[writer.write(remaining) :]

    return write


def _check_copy(actual: tuple[int, str], entry: ManifestEntry, source: object) -> None:
    if actual != (entry.size, entry.xxh3):
        why = (
            f"{actual[0]:,} bytes with xxh3 {actual[1]}, expected {entry.size:,} with {entry.xxh3}"
        )
        raise CheckpointUnreadable(source, why=why)


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}".rstrip("/")
