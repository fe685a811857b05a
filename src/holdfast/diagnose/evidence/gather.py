"""List the evidence files under the user's paths, always in the same order.

Links that the user names are followed, links found in a folder are not. Pipes, sockets and devices
are not opened, so that nothing blocks; what cannot be read is reported.
"""

from __future__ import annotations

import io
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import BinaryIO, cast

from holdfast.core.text import os_error_reason
from holdfast.diagnose.evidence import EvidenceFile, EvidenceKind, SkippedEvidence
from holdfast.diagnose.evidence.archives import (
    EvidenceLocation,
    FoundEvidence,
    identify_evidence,
    iter_evidence,
)
from holdfast.diagnose.evidence.file_types import (
    HEAD_BYTES,
    detect_container,
    detect_encoding,
    detect_kind,
    reason_to_skip,
)
from holdfast.diagnose.evidence.streams import (
    READ_ERRORS,
    FaultTolerantStream,
    IntakeLimits,
    PrefixedStream,
    SpoolFile,
    Utf8Stream,
    buffered,
    describe_read_error,
)

_OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
STANDARD_INPUT = "-"
STANDARD_INPUT_NAME = "standard input"

_SPECIAL_FILES = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
#: Pipes that the shell passes for ``<(command)``; these are read.
_SHELL_PIPE = re.compile(r"/(?:dev|proc/self)/fd/(\d+)$|/dev/stdin$")
_DIGITS = re.compile(r"(\d{1,18})")


def gather(paths: Sequence[str], limits: IntakeLimits | None = None) -> FoundEvidence:
    """Yield every evidence file under ``paths``, and the skipped ones, in a fixed order.

    Read each file of a compressed archive before requesting the next; later access reads the
    archive again.
    """
    limits = limits or IntakeLimits()
    spool = SpoolFile(limits.spool_bytes)
    seen: set[tuple[int, int]] = set()
    count = 0
    for path in paths:
        for item in _find_under(path, limits, spool, seen):
            count += 1
            if count > limits.files:
                why = f"more than {limits.files:,} files; pass fewer"
                yield SkippedEvidence(path, why)
                return
            yield item


def _find_under(
    path: str, limits: IntakeLimits, spool: SpoolFile, seen: set[tuple[int, int]]
) -> FoundEvidence:
    shell_pipe = _SHELL_PIPE.match(path)
    if path == STANDARD_INPUT or (shell_pipe and shell_pipe[1] is None):
        yield from _read_stream(sys.stdin.buffer, STANDARD_INPUT_NAME, limits, spool)
        return
    try:
        status = os.stat(path)  # noqa: PTH116 - Path would reject names that are not text
    except OSError as error:
        yield SkippedEvidence(path, _describe_os_error(error), lost=True)
        return
    except ValueError:
        yield SkippedEvidence(path, "not a valid file name", lost=True)
        return
    if shell_pipe and stat.S_ISFIFO(status.st_mode):
        stream = open(int(shell_pipe[1]), "rb", closefd=False)  # noqa: SIM115 - the shell closes it
        yield from _read_stream(cast(BinaryIO, stream), path, limits, spool)
        return
    files = _walk(path) if stat.S_ISDIR(status.st_mode) else iter([(path, status)])
    for name, found in files:
        if isinstance(found, SkippedEvidence):
            yield found
        else:
            yield from _read_file(name, found, limits, spool, seen)


def _read_file(
    path: str,
    status: os.stat_result,
    limits: IntakeLimits,
    spool: SpoolFile,
    seen: set[tuple[int, int]],
) -> Iterable[EvidenceFile | SkippedEvidence]:
    if not stat.S_ISREG(status.st_mode):
        special = next((why for test, why in _SPECIAL_FILES if test(status.st_mode)), "")
        if special:
            return (SkippedEvidence(path, special),)
    identity = status.st_dev, status.st_ino
    if identity in seen:
        return (SkippedEvidence(path, "already read under another name"),)
    seen.add(identity)
    try:
        head = _read_head(path, min(status.st_size or HEAD_BYTES, HEAD_BYTES))
    except (OSError, ValueError) as error:
        return (SkippedEvidence(path, describe_read_error(error), lost=True),)
    opener = partial(open_nonblocking, path)
    location = EvidenceLocation(path, status.st_size, opener, limits, spool, path=path)
    return identify_evidence(location, head)


def _read_head(path: str, size: int) -> bytes:
    """Return up to ``size`` first bytes; without a file object, whose cost adds up."""
    descriptor = os.open(path, _OPEN_FLAGS)
    try:
        head = os.read(descriptor, size)
        while 0 < len(head) < size and (data := os.read(descriptor, size - len(head))):
            head += data
    except BlockingIOError:  # an empty file of the kernel
        return b""
    finally:
        os.close(descriptor)
    return head


def open_nonblocking(path: str) -> BinaryIO:
    """Open without blocking, as some kernel files (or a pipe that replaced the file) would."""
    return cast(BinaryIO, io.FileIO(os.open(path, _OPEN_FLAGS)))


def _walk(folder: str) -> Iterator[tuple[str, os.stat_result | SkippedEvidence]]:
    """Yield all files under ``folder`` by name, with 2 before 10."""
    pending = [folder]
    while pending:
        current = pending.pop()
        try:
            with os.scandir(current) as entries:
                found = sorted(entries, key=lambda entry: _natural_key(entry.name))
        except OSError as error:
            yield current, SkippedEvidence(current, _describe_os_error(error), lost=True)
            continue
        folders = []
        for entry in found:
            try:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                    continue
                status = entry.stat(follow_symlinks=False)
            except OSError as error:
                why = _describe_os_error(error)
                yield entry.path, SkippedEvidence(entry.path, why, lost=True)
                continue
            yield entry.path, _skip_entry(entry, status) or status
        pending += reversed(folders)


def _describe_os_error(error: OSError) -> str:
    return os_error_reason(error)


def _skip_entry(entry: os.DirEntry[str], status: os.stat_result) -> SkippedEvidence | None:
    if stat.S_ISLNK(status.st_mode):
        return SkippedEvidence(entry.path, "a link; links in folders are not followed")
    why = reason_to_skip(entry.path)
    return SkippedEvidence(entry.path, why) if why else None


def _natural_key(name: str) -> list[tuple[int, int, str]]:
    return [
        (1, int(part), part) if part.isdigit() and part.isascii() else (0, 0, part)
        for part in _DIGITS.split(name)
    ]


def _read_stream(
    stream: BinaryIO, name: str, limits: IntakeLimits, spool: SpoolFile
) -> FoundEvidence:
    """Yield from a stream that can be read once; all but logs are spooled, as they need seeking."""
    try:
        head = stream.read(HEAD_BYTES) or b""
        whole = cast(BinaryIO, PrefixedStream(head, stream))
        if detect_container(head) is None and detect_kind(head) is EvidenceKind.LOG:
            yield _one_pass_log(whole, head, name)
            return
        opener, size = spool.add(whole)
    except READ_ERRORS as error:
        yield SkippedEvidence(name, describe_read_error(error), lost=True)
        return
    yield from iter_evidence(EvidenceLocation(name, size, opener, limits, spool))


def _one_pass_log(whole: BinaryIO, head: bytes, name: str) -> EvidenceFile:
    """Return a log that can be opened once."""
    errors: list[str] = []
    unread = [whole]
    encoding = detect_encoding(head) or "utf-8"

    def open_once() -> BinaryIO:
        if not unread:
            raise OSError(f"{name} can be read only once")
        stream = buffered(FaultTolerantStream(unread.pop(), errors.append))
        return stream if encoding == "utf-8" else buffered(Utf8Stream(stream, encoding))

    return EvidenceFile(name, EvidenceKind.LOG, None, open_once, errors)


def file_states(paths: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return size in bytes and modification time in ns of every file under ``paths``."""
    states: dict[str, tuple[int, int]] = {}
    for path in paths:
        try:
            status = os.stat(path)  # noqa: PTH116 - Path would reject names that are not text
        except (OSError, ValueError):
            continue
        files = _walk(path) if stat.S_ISDIR(status.st_mode) else iter([(path, status)])
        states |= {
            name: (found.st_size, found.st_mtime_ns)
            for name, found in files
            if not isinstance(found, SkippedEvidence)
        }
    return states
