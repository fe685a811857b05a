"""Looks into tar, zip and compressed files: nothing is written to disk but one bounded temporary file without a name.

Members of a compressed tar are read as they come by; whoever opens one later makes the archive be read again. Links,
devices and names that lead out are ignored, archives in archives opened to a depth of ``Limits.depth``, and what an
archive may unpack to is bounded, with all that lies in it.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import stat
import tarfile
import weakref
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import BinaryIO, cast

from holdfast.facts.evidence import Ignored, Kind, Piece, kinds
from holdfast.facts.evidence.kinds import HEAD_BYTES, Container
from holdfast.facts.evidence.streams import (
    FAULTS,
    Budget,
    Chained,
    Forgiving,
    Limits,
    Recoded,
    Spool,
    Stretch,
    buffered,
    reason,
)

Opener = Callable[[], BinaryIO]

#: Headers of a tar that say more about the next member; they are read into memory whole.
_LONG_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME,
                 tarfile.GNUTYPE_LONGLINK)  # fmt: skip
_MOST_HEADER_BYTES = 1 << 20
#: Small members of a compressed tar that are no logs are kept aside: they are read after the logs.
_KEPT_BYTES = 64 << 20
_CHECKPOINT = ("/data.pkl", "/version")


@dataclass(frozen=True)
class Place:
    """Where something to look at lies: its name, its size (None where not known), and how to open it.

    ``path`` is that of a file of its own, and empty for what lies in another.
    """

    name: str
    size: int | None
    open: Opener
    limits: Limits
    spool: Spool
    depth: int = 0
    budget: Budget | None = None
    path: str = ""

    def inner(self, name: str, size: int | None, opener: Opener) -> Place:
        """A member."""
        return replace(self, name=f"{self.name}!{name}", size=size, open=opener, depth=self.depth + 1, path="")


def look(place: Place) -> Iterator[Piece | Ignored]:
    """The piece at ``place``, or all of them where an archive lies there."""
    try:
        with place.open() as stream:
            head = _fill(stream, place.size)
    except FAULTS as fault:
        yield Ignored(place.name, reason(fault), lost=True)
        return
    packed = kinds.container(head)
    if packed is None:
        yield _piece(place, head, place.open)
    elif place.depth >= place.limits.depth:
        yield Ignored(place.name, f"it is an archive inside {place.depth} others; unpack it first", lost=True)
    else:
        yield from _unpack(place, packed)


def _fill(stream: BinaryIO, size: int | None) -> bytes:
    """The first HEAD_BYTES of ``size``, however little a read gives; the kernel's files say that they have none."""
    head, most = b"", min(size or HEAD_BYTES, HEAD_BYTES)
    while len(head) < most and (data := stream.read(HEAD_BYTES - len(head))):
        head += data
    return head


def _piece(place: Place, head: bytes, opener: Opener) -> Piece | Ignored:
    """What begins with ``head``, as a piece that cannot break."""
    if not head:
        return Ignored(place.name, "it is empty")
    kind = kinds.kind(head)
    if kind is Kind.UNKNOWN:
        return Ignored(place.name, kinds.foreign(head) or "it is no text, and of no kind that holdfast knows")
    encoding = kinds.encoding(head) if kind not in (Kind.BOX, Kind.DUMP, Kind.SNAPSHOT) or head[:1] == b"\xff" else None
    troubles: list[str] = []

    def open_safely() -> BinaryIO:
        stream = buffered(Forgiving(opener(), partial(_note, troubles), place.budget), place.size)
        return buffered(Recoded(stream, encoding)) if encoding not in (None, "utf-8") else stream

    path = place.path if encoding == "utf-8" else ""
    return Piece(place.name, kind, place.size, open_safely, troubles, path)


def _note(troubles: list[str], text: str) -> None:
    if text not in troubles:
        troubles.append(text)


def _unpack(place: Place, packed: Container) -> Iterator[Piece | Ignored]:
    if place.budget is None:
        room = max(place.limits.free_bytes, place.limits.ratio * (place.size or 0))
        place = replace(place, budget=Budget(room, place.limits.ratio))
    place = replace(place, path="")
    try:
        if packed is Container.ZIP:
            yield from _zip(place)
        elif packed is Container.TAR:
            yield from _tar(place)
        else:
            yield from _compressed(place, packed)
    except FAULTS as fault:
        yield Ignored(place.name, f"the rest of this archive cannot be read: {reason(fault)}", lost=True)


def _decompressed(opener: Opener, packed: Container) -> BinaryIO:
    """What a compressed stream holds; closing it closes the file."""
    file = opener()
    if packed is Container.GZIP:
        return cast(BinaryIO, Stretch(gzip.GzipFile(fileobj=file), under=file))
    if packed is Container.BZIP2:
        return cast(BinaryIO, Stretch(bz2.BZ2File(file), under=file))
    return cast(BinaryIO, Stretch(lzma.LZMAFile(file), under=file))


def _compressed(place: Place, packed: Container) -> Iterator[Piece | Ignored]:
    opener = partial(_decompressed, place.open, packed)
    with opener() as stream:
        head = _partly(stream)
    inside = kinds.container(head)
    if inside is Container.TAR:
        yield from _tar_stream(place, opener)
    elif inside is not None:
        yield from _nested(replace(place, depth=place.depth + 1, size=None, open=opener))
    else:
        yield _piece(replace(place, size=None), head, opener)


def _partly(stream: BinaryIO) -> bytes:
    """The first bytes of a stream that may break already there; nothing at all is its fault."""
    head = b""
    while len(head) < HEAD_BYTES:
        try:
            data = stream.read(1024)
        except FAULTS:
            if not head:
                raise
            return head
        if not data:
            return head
        head += data
    return head


def _nested(place: Place) -> Iterator[Piece | Ignored]:
    """An archive inside another: kept aside, because it is not only read from the front."""
    if place.depth >= place.limits.depth:
        yield Ignored(place.name, f"it is an archive inside {place.depth} others; unpack it first", lost=True)
        return
    troubles: list[str] = []
    opener, size = place.spool.add(cast(BinaryIO, Forgiving(place.open(), partial(_note, troubles), place.budget)))
    yield from look(replace(place, open=opener, size=size))
    yield from (Ignored(place.name, trouble, lost=True) for trouble in troubles)


# ---- zip


def _zip(place: Place) -> Iterator[Piece | Ignored]:
    file = place.open()
    try:
        archive = zipfile.ZipFile(file)
    except FAULTS:
        file.close()
        raise
    weakref.finalize(archive, file.close)  # whoever holds a member holds the archive
    members = archive.infolist()
    names = [member.filename for member in members]
    if all(any(name.endswith(end) for name in names) for end in _CHECKPOINT):
        yield Ignored(place.name, "it is a checkpoint of torch, not evidence")
        return
    for member in members:
        inner = place.inner(member.filename, member.file_size, partial(_open_zipped, archive, member))
        why = _unwanted(member.filename) or _odd_zipped(member)
        if why:
            yield Ignored(inner.name, why)
        elif not member.is_dir():
            yield from _member(inner)


def _open_zipped(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> BinaryIO:
    return cast(BinaryIO, archive.open(member))


def _odd_zipped(member: zipfile.ZipInfo) -> str:
    if stat.S_ISLNK(member.external_attr >> 16):
        return "it is a link, and links in archives are not followed"
    return "it is encrypted" if member.flag_bits & 1 else ""


def _member(place: Place) -> Iterator[Piece | Ignored]:
    """A member that can be opened at any time."""
    try:
        with place.open() as stream:
            head = _partly(stream)
    except FAULTS as fault:
        yield Ignored(place.name, reason(fault), lost=True)
        return
    if kinds.container(head) is not None:
        try:
            yield from _nested(place)
        except FAULTS as fault:
            yield Ignored(place.name, reason(fault), lost=True)
    else:
        yield _piece(place, head, place.open)


# ---- tar


class _Careful(tarfile.TarInfo):
    """A header that may not make its reader take up megabytes."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _LONG_HEADERS and self.size > _MOST_HEADER_BYTES:
            raise tarfile.ReadError("a header of more than a megabyte")
        member: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        return member


def _odd(member: tarfile.TarInfo) -> str:
    """Why a member of a tar is not read; empty for a plain file, and for a folder."""
    if member.issym() or member.islnk():
        return f"it is a link to {member.linkname}, and links in archives are not followed"
    if member.isdev():
        return "it is a device or a pipe"
    return _unwanted(member.name)


def _unwanted(name: str) -> str:
    parts = name.replace("\\", "/").split("/")
    if not name:
        return "it has no name"
    if name.startswith("/") or ".." in parts:
        return "its name leads out of the archive"
    return kinds.passed_over(name)


def _tar(place: Place) -> Iterator[Piece | Ignored]:
    """A tar that is not compressed: its members lie in the file as they are."""
    with place.open() as file, tarfile.open(fileobj=file, mode="r:", tarinfo=_Careful) as archive:
        for member in archive:
            why = _odd(member)
            inner = place.inner(member.name, member.size, partial(_open_member, place.open, member))
            if why:
                yield Ignored(inner.name, why)
            elif member.isfile():
                yield from _member(inner)


def _open_member(opener: Opener, member: tarfile.TarInfo) -> BinaryIO:
    file = opener()
    if member.issparse():
        raise OSError("it is a file with holes, which is not read from an archive")
    file.seek(member.offset_data)
    return cast(BinaryIO, Stretch(file, member.size))


def _tar_stream(place: Place, opener: Opener) -> Iterator[Piece | Ignored]:
    """A compressed tar: read once, from the front; its logs while they come by."""
    troubles: list[str] = []
    stream = cast(BinaryIO, Forgiving(opener(), partial(_note, troubles), place.budget))
    try:
        with stream, tarfile.open(fileobj=stream, mode="r|", tarinfo=_Careful) as archive:
            for number, member in enumerate(archive):
                inner = place.inner(member.name, member.size, partial(_again, opener, number))
                why = _odd(member)
                if why:
                    yield Ignored(inner.name, why)
                elif member.isfile():
                    yield from _passing(inner, cast(BinaryIO, archive.extractfile(member)))
    except FAULTS:
        if not troubles:
            raise
    yield from (Ignored(place.name, trouble, lost=True) for trouble in troubles)


def _passing(place: Place, stream: BinaryIO) -> Iterator[Piece | Ignored]:
    """A member that comes by: a log is read at once, everything else is kept aside."""
    head = _partly(stream)
    whole = cast(BinaryIO, Chained(head, stream))
    paid = replace(place, budget=None)  # these bytes were counted as the archive was decompressed
    if kinds.container(head) is not None:
        yield from _nested(replace(place, open=lambda: whole))
        return
    if kinds.kind(head) not in (Kind.LOG, Kind.UNKNOWN) and place.size is not None and place.size <= _KEPT_BYTES:
        opener, _ = place.spool.add(whole)
        yield _piece(paid, head, opener)
        return
    now: list[BinaryIO] = [whole]
    yield _piece(paid, head, lambda: now.pop() if now else place.open())
    now.clear()


def _again(opener: Opener, number: int) -> BinaryIO:
    """Member ``number`` of a compressed tar that has gone by: the archive is read again up to there."""
    file = opener()
    try:
        archive = tarfile.open(fileobj=file, mode="r|", tarinfo=_Careful)  # noqa: SIM115 - as long as its member is read
        for count, member in enumerate(archive):
            if count == number:
                return cast(BinaryIO, Stretch(cast(BinaryIO, archive.extractfile(member)), under=file))
    except FAULTS:
        file.close()
        raise
    file.close()
    raise EOFError("the archive ends first")
