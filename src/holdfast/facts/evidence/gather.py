"""Finds the files that a user means: files, folders, archives and standard input, always in the same order.

A link that the user names is followed, a link that is found in a folder is not. Pipes, sockets and devices are not
opened, so that nothing waits; what cannot be read is named.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import BinaryIO, cast

from holdfast.facts.evidence import Ignored, Kind, Piece, kinds
from holdfast.facts.evidence.archives import Place, look
from holdfast.facts.evidence.kinds import HEAD_BYTES
from holdfast.facts.evidence.streams import FAULTS, Chained, Forgiving, Limits, Recoded, Spool, buffered, reason

STANDARD_INPUT = "-"
STANDARD_INPUT_NAME = "standard input"

_ODD = (
    (stat.S_ISFIFO, "it is a pipe"),
    (stat.S_ISSOCK, "it is a socket"),
    (stat.S_ISCHR, "it is a device"),
    (stat.S_ISBLK, "it is a device"),
)
#: What the shell makes of ``<(command)``: pipes that are meant to be read.
_OWN_PIPE = re.compile(r"/(?:dev|proc/self)/fd/(\d+)$|/dev/stdin$")


def gather(paths: Sequence[str], limits: Limits | None = None) -> Iterator[Piece | Ignored]:
    """Every piece of evidence under ``paths``, and what was passed over, in a fixed order.

    Pieces of compressed archives are to be read before the next is asked for, or cost another pass over the archive.
    """
    limits = limits or Limits()
    spool = Spool(limits.spool_bytes)
    seen: set[tuple[int, int]] = set()
    count = 0
    for path in paths:
        for found in _under(path, limits, spool, seen):
            count += 1
            if count > limits.files:
                yield Ignored(path, f"more than {limits.files:,} files; name fewer")
                return
            yield found


def _under(path: str, limits: Limits, spool: Spool, seen: set[tuple[int, int]]) -> Iterator[Piece | Ignored]:
    own = _OWN_PIPE.match(path)
    if path == STANDARD_INPUT or (own and own[1] is None):
        yield from _standard_input(sys.stdin.buffer, STANDARD_INPUT_NAME, limits, spool)
        return
    try:
        status = os.stat(path)  # noqa: PTH116 - names that are no text pass through as they are
    except (OSError, ValueError) as error:
        why = error.strerror.lower() if isinstance(error, OSError) and error.strerror else "no name of a file"
        yield Ignored(path, why, lost=True)
        return
    if own and stat.S_ISFIFO(status.st_mode):
        stream = cast(BinaryIO, open(int(own[1]), "rb", closefd=False))  # noqa: SIM115 - the shell closes it
        yield from _standard_input(stream, path, limits, spool)
    elif stat.S_ISDIR(status.st_mode):
        for each, found in _walk(path):
            if isinstance(found, Ignored):
                yield found
            else:
                yield from _file(each, found, limits, spool, seen)
    else:
        yield from _file(path, status, limits, spool, seen)


def _file(
    path: str, status: os.stat_result, limits: Limits, spool: Spool, seen: set[tuple[int, int]]
) -> Iterator[Piece | Ignored]:
    odd = next((why for test, why in _ODD if test(status.st_mode)), "")
    if odd:
        yield Ignored(path, odd)
        return
    if (status.st_dev, status.st_ino) in seen:
        yield Ignored(path, "it is read already, under another name")
        return
    seen.add((status.st_dev, status.st_ino))
    yield from look(Place(path, status.st_size, partial(open_at_once, path), limits, spool, path=path))


def open_at_once(path: str) -> BinaryIO:
    """Open without waiting: some files of the kernel's (and a pipe that was swapped in) would never answer."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    return cast(BinaryIO, os.fdopen(handle, "rb", buffering=0))


def _walk(folder: str) -> Iterator[tuple[str, os.stat_result | Ignored]]:
    """All files under ``folder``, in the order of their names, where 2 comes before 10."""
    open_folders = [folder]
    while open_folders:
        current = open_folders.pop()
        try:
            with os.scandir(current) as entries:
                found = sorted(entries, key=lambda entry: _natural(entry.name))
        except OSError as error:
            yield current, Ignored(current, (error.strerror or str(error)).lower(), lost=True)
            continue
        inner = []
        for entry in found:
            try:
                if entry.is_dir(follow_symlinks=False):
                    inner.append(entry.path)
                    continue
                status = entry.stat(follow_symlinks=False)
            except OSError as error:
                yield entry.path, Ignored(entry.path, (error.strerror or str(error)).lower(), lost=True)
                continue
            yield entry.path, _passed_over(entry, status) or status
        open_folders += reversed(inner)


def _passed_over(entry: os.DirEntry[str], status: os.stat_result) -> Ignored | None:
    if stat.S_ISLNK(status.st_mode):
        return Ignored(entry.path, "it is a link; links found in a folder are not followed")
    why = kinds.passed_over(entry.name)
    return Ignored(entry.path, why) if why else None


def _natural(name: str) -> list[tuple[int, int, str]]:
    return [(1, int(part), part) if part.isdigit() and part.isascii() else (0, 0, part)
            for part in re.split(r"(\d{1,18})", name)]  # fmt: skip


def _standard_input(stream: BinaryIO, name: str, limits: Limits, spool: Spool) -> Iterator[Piece | Ignored]:
    """A log is read as it comes; all else is kept aside first, because it is read out of order."""
    try:
        head = stream.read(HEAD_BYTES) or b""
    except FAULTS as fault:
        yield Ignored(name, reason(fault), lost=True)
        return
    whole = cast(BinaryIO, Chained(head, stream))
    if kinds.container(head) is None and kinds.kind(head) is Kind.LOG:
        yield _live(whole, head, name)
        return
    try:
        opener, size = spool.add(whole)
    except FAULTS as fault:
        yield Ignored(name, reason(fault), lost=True)
        return
    yield from look(Place(name, size, opener, limits, spool))


def _live(whole: BinaryIO, head: bytes, name: str) -> Piece:
    """A log that can be read once."""
    troubles: list[str] = []
    once = [whole]
    encoding = kinds.encoding(head) or "utf-8"

    def open_once() -> BinaryIO:
        if not once:
            raise OSError(f"{name} can be read only once")
        stream = buffered(Forgiving(once.pop(), troubles.append))
        return stream if encoding == "utf-8" else buffered(Recoded(stream, encoding))

    return Piece(name, Kind.LOG, None, open_once, troubles)


def sizes(paths: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Size in bytes and time of the last change (ns) of every file under ``paths``; tells whether any has grown."""
    found: dict[str, tuple[int, int]] = {}
    for path in paths:
        try:
            status = os.stat(path)  # noqa: PTH116 - as in _under
        except (OSError, ValueError):
            continue
        inside = _walk(path) if stat.S_ISDIR(status.st_mode) else iter([(path, status)])
        found |= {name: (each.st_size, each.st_mtime_ns) for name, each in inside if not isinstance(each, Ignored)}
    return found
