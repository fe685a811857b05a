"""Read tar, zip and compressed files; only one bounded temporary file is written to disk.

Members of a compressed tar are read in passing; opening one later reads the archive again. Links,
devices and names that lead out of the archive are skipped. Nested archives are opened to a depth of
``IntakeLimits.depth`` and share the outermost archive's budget.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import stat
import tarfile
import weakref
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import BinaryIO, cast

import msgspec
from msgspec.structs import replace

from holdfast.diagnose.evidence import EvidenceFile, EvidenceKind, SkippedEvidence
from holdfast.diagnose.evidence.file_types import (
    HEAD_BYTES,
    Container,
    detect_container,
    detect_encoding,
    detect_kind,
    reason_to_skip,
    unsupported_format,
)
from holdfast.diagnose.evidence.streams import (
    READ_ERRORS,
    BoundedStream,
    FaultTolerantStream,
    IntakeLimits,
    PrefixedStream,
    ReadableStream,
    SpoolFile,
    UnpackBudget,
    Utf8Stream,
    buffered,
    describe_read_error,
)

Opener = Callable[[], BinaryIO]
FoundEvidence = Iterator[EvidenceFile | SkippedEvidence]

#: Tar headers that extend the next member's; tarfile reads them into memory whole.
_LONG_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_MAX_HEADER_BYTES = 1 << 20
#: Members of a compressed tar up to this size that are not logs are spooled: they are read later.
_MAX_SPOOLED_BYTES = 64 << 20
_DECOMPRESSORS: dict[Container, Callable[[BinaryIO], ReadableStream]] = {
    Container.GZIP: lambda file: gzip.GzipFile(fileobj=file),
    Container.BZIP2: bz2.BZ2File,
    Container.XZ: lzma.LZMAFile,
}
#: A zip with members of these names is a checkpoint written by torch.save.
_CHECKPOINT_MEMBERS = ("/data.pkl", "/version")


class EvidenceLocation(msgspec.Struct, frozen=True):
    """Where to read a candidate file: its name, its size in bytes (None: unknown), and its opener.

    ``path`` is set only for a file on disk.
    """

    name: str
    size: int | None
    open: Opener
    limits: IntakeLimits
    spool: SpoolFile
    depth: int = 0
    budget: UnpackBudget | None = None
    path: str = ""

    def member(self, name: str, size: int | None, opener: Opener) -> EvidenceLocation:
        """Return the location of a member of this archive."""
        return replace(
            self, name=f"{self.name}!{name}", size=size, open=opener, depth=self.depth + 1, path=""
        )


def iter_evidence(location: EvidenceLocation) -> Iterable[EvidenceFile | SkippedEvidence]:
    """Return the file at ``location``, or all members if it is an archive."""
    try:
        with location.open() as stream:
            head = _read_head(stream, location.size)
    except READ_ERRORS as error:
        return (_lost(location, error),)
    return identify_evidence(location, head)


def identify_evidence(
    location: EvidenceLocation, head: bytes
) -> Iterable[EvidenceFile | SkippedEvidence]:
    """Return the file that begins with ``head``, or all members if it is an archive."""
    container = detect_container(head)
    if container is None:
        return (_identify(location, head, location.open),)
    if location.depth >= location.limits.depth:
        return (_too_deep(location),)
    return _unpack(location, container)


def _lost(location: EvidenceLocation, error: BaseException) -> SkippedEvidence:
    return SkippedEvidence(location.name, describe_read_error(error), lost=True)


def _too_deep(location: EvidenceLocation) -> SkippedEvidence:
    why = f"an archive nested in {location.depth} others; unpack it first"
    return SkippedEvidence(location.name, why, lost=True)


def _read_head(stream: BinaryIO, size: int | None) -> bytes:
    """Return up to HEAD_BYTES; files of /proc have size 0 and content."""
    head, wanted = b"", min(size or HEAD_BYTES, HEAD_BYTES)
    while len(head) < wanted and (data := stream.read(HEAD_BYTES - len(head))):
        head += data
    return head


def _identify(
    location: EvidenceLocation, head: bytes, opener: Opener
) -> EvidenceFile | SkippedEvidence:
    """Return the file that begins with ``head``; its streams end at read errors.

    A log that ``head`` contains as a whole is not read again.
    """
    if not head:
        return SkippedEvidence(location.name, "empty file")
    kind = detect_kind(head)
    if kind is EvidenceKind.UNKNOWN:
        why = unsupported_format(head) or "unrecognized file format"
        return SkippedEvidence(location.name, why)
    is_binary = kind in (EvidenceKind.TRACE, EvidenceKind.DUMP, EvidenceKind.SNAPSHOT)
    encoding = detect_encoding(head) if not is_binary or head[:1] == b"\xff" else None
    errors: list[str] = []
    path = location.path if encoding == "utf-8" else ""
    if kind is EvidenceKind.LOG and encoding == "utf-8" and len(head) == location.size:
        reopen = partial(io.BytesIO, head)
        return EvidenceFile(location.name, kind, location.size, reopen, errors, path, head)

    def open_safely() -> BinaryIO:
        raw = FaultTolerantStream(opener(), partial(_append_once, errors), location.budget)
        if path and kind is EvidenceKind.LOG:
            return cast(BinaryIO, raw)  # read in large parts
        stream = buffered(raw, location.size)
        return stream if encoding in (None, "utf-8") else buffered(Utf8Stream(stream, encoding))

    return EvidenceFile(location.name, kind, location.size, open_safely, errors, path)


def _append_once(errors: list[str], text: str) -> None:
    if text not in errors:
        errors.append(text)


def _unpack(location: EvidenceLocation, container: Container) -> FoundEvidence:
    if location.budget is None:
        limits = location.limits
        most = max(limits.free_bytes, limits.ratio * (location.size or 0))
        location = replace(location, budget=UnpackBudget(most, limits.ratio))
    location = replace(location, path="")
    try:
        if container is Container.ZIP:
            yield from _read_zip(location)
        elif container is Container.TAR:
            yield from _read_tar(location)
        else:
            yield from _read_compressed(location, container)
    except READ_ERRORS as error:
        why = f"the rest of this archive cannot be read: {describe_read_error(error)}"
        yield SkippedEvidence(location.name, why, lost=True)


def _open_decompressed(opener: Opener, container: Container) -> BinaryIO:
    """Open a decompressing stream that closes the compressed file too."""
    file = opener()
    inner = _DECOMPRESSORS[container](file)
    return cast(BinaryIO, BoundedStream(inner, underlying=file))


def _read_compressed(location: EvidenceLocation, container: Container) -> FoundEvidence:
    opener = partial(_open_decompressed, location.open, container)
    with opener() as stream:
        head = _read_available_head(stream)
    inside = detect_container(head)
    if inside is Container.TAR:
        yield from _read_tar_stream(location, opener)
    elif inside is not None:
        yield from _read_nested(replace(location, depth=location.depth + 1, size=None, open=opener))
    else:
        yield _identify(replace(location, size=None), head, opener)


def _read_available_head(stream: BinaryIO) -> bytes:
    """Return the first bytes before any read error. Raises the error if there are none."""
    head = b""
    while len(head) < HEAD_BYTES:
        try:
            data = stream.read(1024)
        except READ_ERRORS:
            if not head:
                raise
            return head
        if not data:
            return head
        head += data
    return head


def _read_nested(location: EvidenceLocation) -> FoundEvidence:
    """Spool an archive inside another, because reading it needs seeking."""
    if location.depth >= location.limits.depth:
        yield _too_deep(location)
        return
    errors: list[str] = []
    report = partial(_append_once, errors)
    opener, size = location.spool.add(
        cast(BinaryIO, FaultTolerantStream(location.open(), report, location.budget))
    )
    yield from iter_evidence(replace(location, open=opener, size=size))
    yield from (SkippedEvidence(location.name, error, lost=True) for error in errors)


# ---- zip


def _read_zip(location: EvidenceLocation) -> FoundEvidence:
    file = location.open()
    try:
        archive = zipfile.ZipFile(file)
    except READ_ERRORS:
        file.close()
        raise
    weakref.finalize(archive, file.close)  # open members hold a reference to the archive
    members = archive.infolist()
    names = [member.filename for member in members]
    if all(any(name.endswith(end) for name in names) for end in _CHECKPOINT_MEMBERS):
        yield SkippedEvidence(location.name, "a checkpoint written by torch.save, not evidence")
        return
    for member in members:
        opener = cast(Opener, partial(archive.open, member))
        inner = location.member(member.filename, member.file_size, opener)
        why = _reason_to_skip_member(member.filename) or _reason_to_skip_zipped(member)
        if why:
            yield SkippedEvidence(inner.name, why)
        elif not member.is_dir():
            yield from _read_member(inner)


def _reason_to_skip_zipped(member: zipfile.ZipInfo) -> str:
    if stat.S_ISLNK(member.external_attr >> 16):
        return "a link; links in archives are not followed"
    return "encrypted" if member.flag_bits & 1 else ""


def _read_member(location: EvidenceLocation) -> FoundEvidence:
    """Yield from a member that can be opened at any time."""
    try:
        with location.open() as stream:
            head = _read_available_head(stream)
        if detect_container(head) is not None:
            yield from _read_nested(location)
            return
    except READ_ERRORS as error:
        yield _lost(location, error)
        return
    yield _identify(location, head, location.open)


# ---- tar


class _SafeTarInfo(tarfile.TarInfo):
    """A header whose extension headers are limited to _MAX_HEADER_BYTES of memory."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _LONG_HEADERS and self.size > _MAX_HEADER_BYTES:
            raise tarfile.ReadError("a header of more than a megabyte")
        member: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        return member


def _reason_to_skip_tarred(member: tarfile.TarInfo) -> str:
    """Return why a member of a tar is not read; empty for a plain file or a folder."""
    if member.issym() or member.islnk():
        return f"a link to {member.linkname}; links in archives are not followed"
    if member.isdev():
        return "a device or pipe"
    return _reason_to_skip_member(member.name)


def _reason_to_skip_member(name: str) -> str:
    if not name:
        return "no name"
    if name.startswith("/") or ".." in name.replace("\\", "/").split("/"):
        return "unsafe name: it leads out of the archive"
    return reason_to_skip(name)


def _read_tar(location: EvidenceLocation) -> FoundEvidence:
    """Yield from an uncompressed tar, whose members can be read in place."""
    with (
        location.open() as file,
        tarfile.open(fileobj=file, mode="r:", tarinfo=_SafeTarInfo) as archive,
    ):
        for member in archive:
            opener = partial(_open_tarred, location.open, member)
            inner = location.member(member.name, member.size, opener)
            if why := _reason_to_skip_tarred(member):
                yield SkippedEvidence(inner.name, why)
            elif member.isfile():
                yield from _read_member(inner)


def _open_tarred(opener: Opener, member: tarfile.TarInfo) -> BinaryIO:
    file = opener()
    if member.issparse():
        raise OSError("sparse files in archives are not supported")
    file.seek(member.offset_data)
    return cast(BinaryIO, BoundedStream(file, member.size))


def _read_tar_stream(location: EvidenceLocation, opener: Opener) -> FoundEvidence:
    """Yield from a compressed tar, read once from the front; logs are read in passing."""
    errors: list[str] = []
    stream = cast(
        BinaryIO, FaultTolerantStream(opener(), partial(_append_once, errors), location.budget)
    )
    try:
        with stream, tarfile.open(fileobj=stream, mode="r|", tarinfo=_SafeTarInfo) as archive:
            for number, member in enumerate(archive):
                reopen = partial(_reopen_tarred, opener, number)
                inner = location.member(member.name, member.size, reopen)
                if why := _reason_to_skip_tarred(member):
                    yield SkippedEvidence(inner.name, why)
                elif member.isfile():
                    yield from _read_passing(inner, cast(BinaryIO, archive.extractfile(member)))
    except READ_ERRORS:
        if not errors:
            raise
    yield from (SkippedEvidence(location.name, error, lost=True) for error in errors)


def _read_passing(location: EvidenceLocation, stream: BinaryIO) -> FoundEvidence:
    """Yield from the current member of a tar stream: a log is read now, other kinds are spooled."""
    head = _read_available_head(stream)
    whole = cast(BinaryIO, PrefixedStream(head, stream))
    counted = replace(location, budget=None)  # the outer stream already counts these bytes
    if detect_container(head) is not None:
        yield from _read_nested(replace(location, open=lambda: whole))
        return
    is_log = detect_kind(head) in (EvidenceKind.LOG, EvidenceKind.UNKNOWN)
    if not is_log and location.size is not None and location.size <= _MAX_SPOOLED_BYTES:
        opener, _ = location.spool.add(whole)
        yield _identify(counted, head, opener)
        return
    now: list[BinaryIO] = [whole]
    yield _identify(counted, head, lambda: now.pop() if now else location.open())
    now.clear()


def _reopen_tarred(opener: Opener, number: int) -> BinaryIO:
    """Open member ``number`` of a compressed tar by reading the archive again up to it."""
    file = opener()
    try:
        archive = tarfile.open(  # noqa: SIM115 - open as long as its member is read
            fileobj=file, mode="r|", tarinfo=_SafeTarInfo
        )
        for count, member in enumerate(archive):
            if count == number:
                inner = cast(BinaryIO, archive.extractfile(member))
                return cast(BinaryIO, BoundedStream(inner, underlying=file))
    except READ_ERRORS:
        file.close()
        raise
    file.close()
    raise EOFError("the archive ends first")
