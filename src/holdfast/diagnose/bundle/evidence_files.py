"""Find the files of a debug bundle, and open each one as a whole or as head and tail."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from holdfast.core.errors import DumpCorrupt, TraceCorrupt
from holdfast.core.findings import Verdict
from holdfast.core.text import os_error_reason
from holdfast.diagnose.evidence import EvidenceKind, SkippedEvidence, file_types
from holdfast.diagnose.evidence.gather import gather
from holdfast.diagnose.evidence.streams import FileSlice, Utf8Stream, buffered
from holdfast.watcher.shared_memory_cleanup import SHM

#: A text file larger than both together loses its middle.
HEAD_BYTES = 16 << 20
TAIL_BYTES = 48 << 20
MAX_RECORD_BYTES = 128 << 20
MAX_DOCUMENT_BYTES = 32 << 20
MAX_UNPACKED_BYTES = 1 << 30
MAX_FILES = 20_000
#: Range in which the end of a line is searched when a text file is cut.
_LINE_SEARCH_BYTES = 1 << 20
_DAY_S = 86_400.0
_MAX_LEDGER_LINES = 20_000
_RECORD_KINDS = (EvidenceKind.TRACE, EvidenceKind.DUMP)
_DOCUMENT_KINDS = (EvidenceKind.REPORT, EvidenceKind.STACKS, EvidenceKind.HISTORY)
_SNAPSHOT_WHY = "GPU memory snapshots are not scanned for secrets; the verdict has their content"


class OmittedFile(msgspec.Struct, frozen=True):
    """A file, or the output of a program, that is not in the bundle, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class BundleSource:
    """A file for the bundle: path, name in the bundle, kind, and encoding if it is text.

    A member of an archive has ``unpack`` instead of the path.
    """

    path: Path
    name: str
    kind: EvidenceKind
    encoding: str | None
    is_document: bool = False
    is_page: bool = False
    unpack: Callable[[], BinaryIO] | None = None


class Excerpt:
    """The included part of an open file; ``omitted`` is the number of bytes cut from its middle."""

    def __init__(self, file: BinaryIO, source: BundleSource) -> None:
        self._file, self._source = file, source
        self.size = os.fstat(file.fileno()).st_size
        is_cut = self.size > HEAD_BYTES + TAIL_BYTES and source.kind not in _RECORD_KINDS
        self.omitted = self.size - HEAD_BYTES - TAIL_BYTES if is_cut else 0

    def read_record(self) -> bytes:
        """Return the whole record.

        Raises:
            TraceCorrupt, DumpCorrupt: it is larger than such a record can be.
        """
        if self.size > MAX_RECORD_BYTES:
            error = TraceCorrupt if self._source.kind is EvidenceKind.TRACE else DumpCorrupt
            raise error(self._source.name, why=f"it is larger than {MAX_RECORD_BYTES >> 20} MiB")
        return self.read_text()

    def read_text(self) -> bytes:
        """Return the whole content; text is converted to UTF-8."""
        with self._part(0, self.size) as stream:
            return stream.read()

    def parts(self) -> Iterator[BinaryIO]:
        """Yield the text, or its head and its tail, each of whole lines."""
        if not self.omitted:
            yield self._part(0, self.size)
            return
        yield self._part(0, self._line_end_before(HEAD_BYTES))
        begin = self._line_end_after(self.size - TAIL_BYTES)
        yield self._part(begin, self.size - begin)

    def _line_end_before(self, position: int) -> int:
        """Return the last line end within 1 MiB before ``position``, or the begin of that range."""
        begin = position - _LINE_SEARCH_BYTES
        data = os.pread(self._file.fileno(), _LINE_SEARCH_BYTES, begin)
        return begin + data.rfind(b"\n") + 1

    def _line_end_after(self, position: int) -> int:
        """Return the first line end within 1 MiB after ``position``, or the end of that range."""
        data = os.pread(self._file.fileno(), _LINE_SEARCH_BYTES, position)
        return position + (data.find(b"\n") + 1 or _LINE_SEARCH_BYTES)

    def _part(self, begin: int, size: int) -> BinaryIO:
        stream = buffered(FileSlice(self._file, begin, size))
        encoding = self._source.encoding
        return stream if encoding in (None, "utf-8") else buffered(Utf8Stream(stream, encoding))


@contextmanager
def open_source(source: BundleSource) -> Iterator[Excerpt]:
    """Open the file, or unpack the member of an archive; never follow a link that replaced it."""
    if source.unpack is not None:
        with source.unpack() as stream, tempfile.TemporaryFile() as spool:
            while data := stream.read(1 << 20):
                if spool.tell() + len(data) > MAX_UNPACKED_BYTES:
                    raise OSError(f"it unpacks to more than {MAX_UNPACKED_BYTES >> 20} MiB")
                spool.write(data)
            spool.flush()
            yield Excerpt(cast(BinaryIO, spool), source)
        return
    descriptor = os.open(source.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{source.name} is no longer a regular file")
        yield Excerpt(file, source)


def find_sources(
    paths: Iterable[Path], excluded: Collection[Path] = ()
) -> Iterator[BundleSource | OmittedFile]:
    """Yield every file in ``paths``, classified, or why it is omitted; ``excluded`` are ignored.

    Its name begins with that of the path, and with the folders that tell equal names apart: the
    logs of two hosts are often named alike.
    """
    count = 0
    tops = [Path(os.path.realpath(path)) for path in paths]
    for top in tops:
        prefix = _distinct_name(top, tops)
        for file in _walk(top, excluded):
            name = str(prefix / file.relative_to(top))
            count += 1
            if count > MAX_FILES:
                why = f"there are more than {MAX_FILES} files; this and later ones are omitted"
                yield OmittedFile(name, why)
                return
            yield from _classify(file, name)
        live = SHM / f"holdfast-{top.name}"
        if (top / "run.json").exists() and live.is_dir():  # the run has not ended
            for trace in sorted(live.glob("rank*.trace")):
                yield from _classify(trace, f"{top.name}/traces/{trace.name}")


def _distinct_name(path: Path, others: Iterable[Path]) -> Path:
    """Return the end of the path, as long as needed to differ from those of the others."""
    names = path.parts[1:]
    rivals = [other.parts[1:] for other in others if other != path]
    for length in range(1, len(names) + 1):
        if all(rival[-length:] != names[-length:] for rival in rivals):
            return Path(*names[-length:])
    return Path(*names[-1:] or ["root"])


def _walk(path: Path, excluded: Collection[Path]) -> Iterator[Path]:
    """Yield the path, or all files in the folder by name; links in it are yielded, not followed."""
    if path in excluded:
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
            yield from _walk(Path(entry.path), excluded)
        elif Path(entry.path) not in excluded:
            yield Path(entry.path)


def _classify(path: Path, name: str) -> Iterator[BundleSource | OmittedFile]:
    """Yield the file with its kind by its first bytes, or the members of an archive."""
    try:
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):
            yield OmittedFile(name, _why_not_regular(mode))
            return
        with path.open("rb") as file:
            head = file.read(file_types.HEAD_BYTES)
    except OSError as error:
        yield OmittedFile(name, os_error_reason(error))
        return
    if file_types.detect_container(head) is None:
        yield _classify_content(BundleSource(path, name, EvidenceKind.UNKNOWN, None), head)
        return
    for member in gather([str(path)]):
        member_name = name + member.name.removeprefix(str(path)).replace("!", "/")
        if isinstance(member, SkippedEvidence):
            yield OmittedFile(member_name, member.why)
        elif member.kind is EvidenceKind.SNAPSHOT:
            yield OmittedFile(member_name, _SNAPSHOT_WHY)
        else:
            is_document = member.kind in _DOCUMENT_KINDS
            yield BundleSource(
                path, member_name, member.kind, "utf-8", is_document, unpack=member.open
            )


def _why_not_regular(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "symbolic links are not followed"
    return "unreadable folder" if stat.S_ISDIR(mode) else "not a regular file"


def _classify_content(source: BundleSource, head: bytes) -> BundleSource | OmittedFile:
    if not head:
        return OmittedFile(source.name, "empty file")
    kind = file_types.detect_kind(head)
    if kind in _RECORD_KINDS:
        return replace(source, kind=kind)
    if kind is EvidenceKind.SNAPSHOT:
        return OmittedFile(source.name, _SNAPSHOT_WHY)
    foreign = file_types.unsupported_format(head)
    encoding = None if foreign else file_types.detect_encoding(head)
    if encoding is None:
        why = foreign or "unrecognized binary file"
        return OmittedFile(source.name, f"{why}; it cannot be scanned for secrets")
    begin = head.lstrip()[:15].lower()
    return replace(
        source,
        kind=kind,
        encoding=encoding,
        is_document=begin[:1] in (b"{", b"["),
        is_page=begin.startswith((b"<!doctype html", b"<html")),
    )


def find_newest_run(folder: Path | None) -> tuple[Path, ...]:
    """Return the run in ``folder`` that began last; empty if there is none."""
    runs = [path.parent for path in folder.glob("*/run.json")] if folder is not None else []
    return (max(runs, key=lambda run: (run / "run.json").stat().st_mtime),) if runs else ()


def read_run_verdict(paths: Iterable[Path]) -> Verdict | None:
    """Return the verdict of the last incident of the runs in ``paths``."""
    files = [file for path in paths for file in path.glob("incidents/*/verdict.json")]
    for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True):
        with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.json.decode(file.read_bytes(), type=Verdict)
    return None


def earliest_evidence_time(paths: Iterable[Path]) -> float | None:
    """Return the Unix time at which the oldest evidence may begin.

    A run records its begin; other files are assumed to begin at most a day before their last write.
    """
    return min((_begin_time(path) for path in paths), default=None)


def _begin_time(path: Path) -> float:
    with suppress(
        OSError, msgspec.DecodeError, KeyError, TypeError, ValueError, UnicodeDecodeError
    ):
        return float(msgspec.json.decode((path / "run.json").read_bytes())["begun"])
    return path.stat().st_mtime - _DAY_S


def recorded_hosts(paths: Iterable[Path]) -> frozenset[str]:
    """Return the hosts that the ledgers of the runs in ``paths`` name; none without a ledger."""
    hosts: set[str] = set()
    for path in paths:
        with suppress(OSError), (path / "ledger.jsonl").open("rb") as ledger:
            for line in islice(ledger, _MAX_LEDGER_LINES):
                with suppress(msgspec.DecodeError, UnicodeDecodeError):
                    hosts.add(msgspec.json.decode(line, type=_OnHost).host)
    return frozenset(hosts - {""})


class _OnHost(msgspec.Struct):
    host: str = ""
