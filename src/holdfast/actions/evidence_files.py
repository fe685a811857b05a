"""Finds the files that go into a report, follows no link, opens each as far as it is taken: whole, or head and tail."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from holdfast.actions.run_folder import SHM
from holdfast.errors import BoxNoise, DumpNoise
from holdfast.facts.evidence import Ignored, Kind, kinds
from holdfast.facts.evidence.gather import gather
from holdfast.facts.evidence.streams import Recoded, Slice, buffered
from holdfast.findings import Verdict

#: A text larger than both together loses its middle.
HEAD_BYTES = 16 << 20
TAIL_BYTES = 48 << 20
MOST_RECORD_BYTES = 128 << 20
MOST_DOCUMENT_BYTES = 32 << 20
MOST_UNPACKED_BYTES = 1 << 30
MOST_FILES = 20_000
_DAY_S = 86_400.0


class LeftOut(msgspec.Struct, frozen=True):
    """A file, or an answer of the machine, that is not in the archive, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class Found:
    """A file to take: where it lies, its name in the archive, what it is, and in which encoding, where it is text.

    A member of an archive has ``unpack`` in place of the path.
    """

    path: Path
    name: str
    kind: Kind
    encoding: str | None
    is_document: bool = False
    is_page: bool = False
    unpack: Callable[[], BinaryIO] | None = None


_SNAPSHOT_WHY = "it is a snapshot of GPU memory, in which secrets are not looked for; what it tells is in the verdict"


class Excerpt:
    """An open file as far as it is taken. ``left_out`` counts the bytes of the middle that are not."""

    def __init__(self, file: BinaryIO, found: Found) -> None:
        self._file, self._found = file, found
        self.size = os.fstat(file.fileno()).st_size
        record = found.kind in (Kind.BOX, Kind.DUMP)
        self.cut = self.size > HEAD_BYTES + TAIL_BYTES and not record
        self.left_out = self.size - HEAD_BYTES - TAIL_BYTES if self.cut else 0

    def whole(self) -> bytes:
        """All of it.

        Raises:
            BoxNoise, DumpNoise: it is larger than such a record can be.
        """
        if self.size > MOST_RECORD_BYTES:
            error = BoxNoise if self._found.kind is Kind.BOX else DumpNoise
            raise error(self._found.name, why=f"it is larger than {MOST_RECORD_BYTES >> 20} MiB")
        with self._part(0, self.size) as stream:
            return stream.read()

    def text(self) -> bytes:
        """All of a text, as UTF-8."""
        with self._part(0, self.size) as stream:
            return stream.read()

    def parts(self) -> Iterator[BinaryIO]:
        """The text, or its head and its tail; a line that is torn by the cut is left out at either side."""
        if not self.cut:
            yield self._part(0, self.size)
            return
        yield self._part(0, self._line_end(HEAD_BYTES))
        begin = self._line_end(self.size - TAIL_BYTES, forward=True)
        yield self._part(begin, self.size - begin)

    def _line_end(self, near: int, *, forward: bool = False) -> int:
        """The end of a line within 1 MiB of ``near``; nothing is lost but room where there is none."""
        reach = 1 << 20
        begin = near if forward else near - reach
        data = os.pread(self._file.fileno(), reach, begin)
        at = data.find(b"\n") if forward else data.rfind(b"\n")
        return begin + at + 1 if at >= 0 else begin + (reach if forward else 0)

    def _part(self, begin: int, size: int) -> BinaryIO:
        stream = buffered(Slice(self._file, begin, size))
        encoding = self._found.encoding
        return stream if encoding in (None, "utf-8") else buffered(Recoded(stream, encoding))


@contextmanager
def opened(found: Found) -> Iterator[Excerpt]:
    """The file, opened without following a link that has taken its place meanwhile; a member is unpacked first."""
    if found.unpack is not None:
        with found.unpack() as stream, tempfile.TemporaryFile() as spool:
            while data := stream.read(1 << 20):
                if spool.tell() + len(data) > MOST_UNPACKED_BYTES:
                    raise OSError(f"it unpacks to more than {MOST_UNPACKED_BYTES >> 20} MiB")
                spool.write(data)
            spool.flush()
            yield Excerpt(cast(BinaryIO, spool), found)
        return
    descriptor = os.open(found.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{found.name} is no file any more")
        yield Excerpt(file, found)


def find(paths: Iterable[Path], besides: Collection[Path] = ()) -> Iterator[Found | LeftOut]:
    """Every file in ``paths``, what it is, or why it is not taken; ``besides`` are left alone without a word."""
    count = 0
    for given in paths:
        top = Path(os.path.realpath(given))
        for path in _files(top, besides):
            name = str(Path(top.name or "root", path.relative_to(top)))
            count += 1
            if count > MOST_FILES:
                yield LeftOut(name, f"there are more than {MOST_FILES} files; it and those after it are not taken")
                return
            yield from _look(path, name)
        live = SHM / f"holdfast-{top.name}"
        if (top / "run.json").exists() and live.is_dir():  # a run that still runs
            for box in sorted(live.glob("rank*.box")):
                yield from _look(box, f"{top.name}/boxes/{box.name}")


def _files(path: Path, besides: Collection[Path]) -> Iterator[Path]:
    """The path itself, or all that is in the folder, in the order of names; a link in it is given, not followed."""
    if path in besides:
        return
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    try:
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    except OSError:
        yield path
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry.path), besides)
        elif Path(entry.path) not in besides:
            yield Path(entry.path)


def _look(path: Path, name: str) -> Iterator[Found | LeftOut]:
    """What the file is, by its first bytes; the members of an archive."""
    try:
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):
            why = "it is a folder that cannot be read" if stat.S_ISDIR(mode) else "it is no file"
            yield LeftOut(name, "it is a link, and links are not followed" if stat.S_ISLNK(mode) else why)
            return
        with path.open("rb") as file:
            head = file.read(kinds.HEAD_BYTES)
    except OSError as error:
        yield LeftOut(name, (error.strerror or str(error)).lower())
        return
    if kinds.container(head) is None:
        yield _judge(Found(path, name, Kind.UNKNOWN, None), head)
        return
    for piece in gather([str(path)]):
        inside = name + piece.name.removeprefix(str(path)).replace("!", "/")
        if isinstance(piece, Ignored):
            yield LeftOut(inside, piece.why)
        elif piece.kind is Kind.SNAPSHOT:
            yield LeftOut(inside, _SNAPSHOT_WHY)
        else:
            is_document = piece.kind in (Kind.REPORT, Kind.STACKS, Kind.HISTORY)
            yield Found(path, inside, piece.kind, "utf-8", is_document, unpack=piece.open)


def _judge(found: Found, head: bytes) -> Found | LeftOut:
    if not head:
        return LeftOut(found.name, "it is empty")
    kind = kinds.kind(head)
    if kind in (Kind.BOX, Kind.DUMP):
        return replace(found, kind=kind)
    if kind is Kind.SNAPSHOT:
        return LeftOut(found.name, _SNAPSHOT_WHY)
    encoding = None if kinds.foreign(head) else kinds.encoding(head)
    if encoding is None:
        why = kinds.foreign(head) or "it is binary and of a form that holdfast does not know"
        return LeftOut(found.name, f"{why}, so secrets cannot be looked for in it")
    begins = head.lstrip()[:15].lower()
    is_page = begins.startswith((b"<!doctype html", b"<html"))
    return replace(
        found, kind=kind, encoding=encoding, is_document=begins[:1] in (b"{", b"["), is_page=is_page
    )  # fmt: skip


def newest_run(folder: Path | None) -> tuple[Path, ...]:
    """The run in ``folder`` that began last; none where there is none."""
    runs = [path.parent for path in folder.glob("*/run.json")] if folder is not None else []
    return (max(runs, key=lambda run: (run / "run.json").stat().st_mtime),) if runs else ()


def verdict_of(paths: Iterable[Path]) -> Verdict | None:
    """The verdict of the last incident of the runs in ``paths``."""
    files = [file for path in paths for file in path.glob("incidents/*/verdict.json")]
    for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True):
        with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.json.decode(file.read_bytes(), type=Verdict)
    return None


def began(paths: Iterable[Path]) -> float | None:
    """Unix time at which the oldest evidence may have begun.

    A run says so; the beginning of anything else is taken to lie within a day before it was last written to.
    """
    return min((_began(path) for path in paths), default=None)


def _began(path: Path) -> float:
    with suppress(OSError, msgspec.DecodeError, KeyError, TypeError, ValueError, UnicodeDecodeError):
        return float(msgspec.json.decode((path / "run.json").read_bytes())["begun"])
    return path.stat().st_mtime - _DAY_S
