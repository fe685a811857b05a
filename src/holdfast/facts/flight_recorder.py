r"""Reads the dumps of torch's flight recorder: which collectives a rank enqueued, and how far the device got with them.

A dump is a pickle of plain data (``TORCH_FR_DUMP_TEMP_FILE``, ``_dump_fr_trace()``) or JSON
(``_dump_fr_trace_json()``), written by torch's ``c10d/FlightRecorderDetail.hpp``. Versions 2.0 to 2.10 differ in keys
that are missing, and later ones of the same major number add some. It is hostile input: nothing in it is run, sizes are
bounded, an entry that is not what torch writes is dropped and counted, and what cannot be read at all raises one
sentence.

What to know of its contents. Group ids count the groups of one process and mean nothing elsewhere. Sequence numbers
count from 1; calls made inside a coalescing block share one number and stay ``scheduled`` for ever, only the
``coalesced`` entry that closes the block has a state. ``started`` is seen with TORCH_NCCL_ENABLE_TIMING alone. On gloo
the state never moves, and ``retired`` tells (also of a call that failed).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from holdfast.errors import DumpNoise, DumpTruncated, DumpUnreadable, DumpVersion
from holdfast.facts import plain_pickle, recorded_entries
from holdfast.facts.recorded_entries import Entry, number, or_none, text

#: A dump of 2,000 calls with 30 frames each has 0.4 MB as a pickle and 0.9 MB as JSON.
MOST_BYTES = 32 << 20
MOST_GROUPS = 1 << 14
MAJOR = 2

_T = TypeVar("_T")
_RANK_IN_NAME = (re.compile(r"rank_?(\d+)"), re.compile(r"(\d+)(?:\.\w+)?$"))


class Status(msgspec.Struct, frozen=True, gc=False):
    """Number of the last call of a group that was enqueued, started and completed; -1 where there was none.

    torch numbers sends and receives apart from collectives, and keeps the last of either here.
    """

    enqueued: int = -1
    started: int = -1
    completed: int = -1


class RecordedGroup(msgspec.Struct, frozen=True, gc=False):
    """A process group as the dump knows it: ``id`` is None, or ``name`` empty, where no entry tells that."""

    name: str
    description: str = ""
    ranks: tuple[int, ...] | None = None
    id: int | None = None
    status: Status | None = None


class Dump(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's dump. ``rank`` is what the file's name says; ``dropped`` counts entries that were none."""

    version: str
    library: str = ""
    rank: int | None = None
    groups: tuple[RecordedGroup, ...] = ()
    entries: tuple[Entry, ...] = ()
    dropped: int = 0


def read(path: Path) -> Dump:
    """The dump in the file ``path``.

    Raises:
        DumpTruncated, DumpVersion, DumpNoise, DumpUnreadable: it is cut short, of another version, or no dump.
    """
    try:
        data = _content(path)
    except OSError as error:
        raise DumpUnreadable(path, why=(error.strerror or str(error)).lower()) from error
    if data is None:
        raise DumpNoise(path, why="it is no file")
    return parse(data, path)


def _content(path: Path) -> bytes | None:
    """The first bytes of a file, and one more than are read; None of anything else, which may never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(MOST_BYTES + 1)


def parse(data: bytes, subject: Path | str = "(in memory)") -> Dump:
    """The dump in ``data``, a pickle or JSON; ``subject`` names it, and may tell the rank. Raises as :func:`read`."""
    if len(data) > MOST_BYTES:
        raise DumpNoise(subject, why=f"it is larger than the {MOST_BYTES >> 20} MiB that are read")
    content = _decoded(data, subject)
    version = content.get("version") if isinstance(content, dict) else None
    if (
        not isinstance(content, dict)
        or not isinstance(version, str)
        or not re.fullmatch(r"\d{1,4}(\.\d{1,4})*", version)
    ):
        raise DumpNoise(subject, why="it does not say which version of a dump it is")
    if int(version.split(".")[0]) != MAJOR:
        raise DumpVersion(subject, why=f"its form is version {version}, this holdfast reads {MAJOR}.x")
    return _dump(content, version, rank_in_name(Path(subject).name))


def rank_in_name(name: str) -> int | None:
    """The rank that a dump's name ends in or speaks of (``nccl_trace_rank_12``, ``_dump_12``); None where none is."""
    for pattern in _RANK_IN_NAME:
        if match := pattern.search(name[-255:]):
            return int(match[1])
    return None


def _decoded(data: bytes, subject: Path | str) -> Any:
    if plain_pickle.looks_like_pickle(data):
        try:
            return plain_pickle.loads(data)
        except plain_pickle.Truncated as error:
            raise DumpTruncated(subject, why=str(error)) from error
        except plain_pickle.Refused as error:
            raise DumpNoise(subject, why=str(error)) from error
    if not data:
        raise DumpTruncated(subject, why="it is empty")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        if data[:1] == b"{" and not data.rstrip().endswith(b"}"):
            raise DumpTruncated(subject) from error
        raise DumpNoise(subject) from error


# ---- from torch's words to ours


def _dump(content: Mapping[Any, Any], version: str, rank: int | None) -> Dump:
    listed = content.get("entries")
    entries = listed[-recorded_entries.MOST_ENTRIES :] if isinstance(listed, list) else []
    made = recorded_entries.entries(entries)
    library = content.get("comm_lib_version", content.get("nccl_version"))
    return Dump(
        version=version, library=library[:64] if isinstance(library, str) else "", rank=rank, entries=tuple(made),
        groups=_groups(content, made), dropped=len(entries) - len(made),
    )  # fmt: skip


def _groups(content: Mapping[Any, Any], entries: list[Entry]) -> tuple[RecordedGroup, ...]:
    """The groups of ``pg_config`` and of entries, with their status; one whose id no entry names keeps that alone."""
    ids: dict[tuple[str, str], int | None] = dict(map(attrgetter("process_group", "group_id"), entries))
    states = {int(key): status for key, status in _values(content, "pg_status", _status) if key.isdecimal()}
    groups = {group.name: group for _, group in _values(content, "pg_config", _group) if group.name}  # gloo writes ""
    groups = {name: RecordedGroup(name, description) for name, description in ids} | groups
    by_name = {name: number for (name, _), number in ids.items()}
    found = []
    for name, group in groups.items():
        number = by_name.get(name)
        status = None if number is None else states.pop(number, None)
        found.append(msgspec.structs.replace(group, id=number, status=status))
    return (*found, *(RecordedGroup("", id=number, status=status) for number, status in states.items()))


def _values(content: Mapping[Any, Any], name: str, make: Callable[[Any], _T]) -> Iterator[tuple[str, _T]]:
    """The values of a dict in the dump that can be made, with their keys."""
    given = content.get(name)
    for key, value in list(given.items())[:MOST_GROUPS] if isinstance(given, dict) else ():
        made = or_none(make, value)
        if made is not None and isinstance(key, str) and len(key) <= 4096:
            yield key, made


def _group(given: Mapping[str, Any]) -> RecordedGroup:
    ranks = given.get("ranks", "")
    numbers = re.findall(r"\d{1,9}", ranks) if isinstance(ranks, str) else [*ranks]
    return RecordedGroup(text(given["name"]), text(given.get("desc", "")), tuple(map(int, numbers)) or None)


def _status(given: Mapping[str, Any]) -> Status:
    return Status(*(number(given.get(f"last_{what}_collective", -1)) for what in ("enqueued", "started", "completed")))
