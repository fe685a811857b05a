r"""Reads dumps of torch's flight recorder: the collectives of a rank and their device progress.

A dump is a pickle of plain data (``TORCH_FR_DUMP_TEMP_FILE``, ``_dump_fr_trace()``) or JSON
(``_dump_fr_trace_json()``), written by torch's ``c10d/FlightRecorderDetail.hpp``. Versions 2.0 to
2.10 differ in missing keys, and later ones of the same major version may add keys. A dump is
untrusted input: nothing in it is executed, sizes are limited, malformed entries are dropped and
counted, and a dump that cannot be read at all raises one sentence.

Group ids count the groups of one process and have no meaning elsewhere. Sequence numbers count from
1; calls inside a coalescing block share one number and stay ``scheduled``; only the ``coalesced``
entry that closes the block has a state. ``started`` is reported with TORCH_NCCL_ENABLE_TIMING only.
On gloo the state never changes, and ``retired`` shows completion, also of a failed call.
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

from holdfast.core import plain_pickle
from holdfast.core.errors import DumpCorrupt, DumpTruncated, DumpUnreadable, DumpVersion
from holdfast.core.text import os_error_reason
from holdfast.watcher.flight_recorder import entries as flight_recorder_entries
from holdfast.watcher.flight_recorder.entries import DumpEntry, convert_or_none, number, text

#: A dump of 2,000 calls with 30 frames each has 0.4 MB as a pickle and 0.9 MB as JSON.
MAX_BYTES = 32 << 20
MAX_GROUPS = 1 << 14
MAJOR = 2

_T = TypeVar("_T")
_RANK_IN_NAME = (re.compile(r"rank_?(\d+)"), re.compile(r"(\d+)(?:\.\w+)?$"))


class GroupStatus(msgspec.Struct, frozen=True, gc=False):
    """Numbers of the last call of a group that was enqueued, started and completed; -1 for none.

    torch counts sends and receives separately from collectives, and stores the last of either here.
    """

    enqueued: int = -1
    started: int = -1
    completed: int = -1


class RecordedGroup(msgspec.Struct, frozen=True, gc=False):
    """A process group in the dump: ``id`` is None, or ``name`` empty, if no entry contains it."""

    name: str
    description: str = ""
    ranks: tuple[int, ...] | None = None
    id: int | None = None
    status: GroupStatus | None = None


class FlightRecorderDump(msgspec.Struct, frozen=True, kw_only=True):
    """The dump of one rank (from the file name); ``dropped`` counts malformed entries."""

    version: str
    library: str = ""
    rank: int | None = None
    groups: tuple[RecordedGroup, ...] = ()
    entries: tuple[DumpEntry, ...] = ()
    dropped: int = 0


def read(path: Path) -> FlightRecorderDump:
    """Read the dump in the file ``path``.

    Raises:
        DumpTruncated, DumpVersion, DumpCorrupt, DumpUnreadable: it is truncated, of another
            version, or no dump.
    """
    try:
        data = _content(path)
    except OSError as error:
        raise DumpUnreadable(path, why=os_error_reason(error)) from error
    if data is None:
        raise DumpCorrupt(path, why="it is not a regular file")
    return parse_dump(data, path)


def _content(path: Path) -> bytes | None:
    """Return the content, at most one byte over the limit; None if it is not a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(MAX_BYTES + 1)


def parse_dump(data: bytes, subject: Path | str = "(in memory)") -> FlightRecorderDump:
    """Parse a dump, pickle or JSON; ``subject`` names it. Raises as :func:`read`."""
    if len(data) > MAX_BYTES:
        raise DumpCorrupt(subject, why=f"it is larger than the limit of {MAX_BYTES >> 20} MiB")
    content = _decoded(data, subject)
    version = content.get("version") if isinstance(content, dict) else None
    if (
        not isinstance(content, dict)
        or not isinstance(version, str)
        or not re.fullmatch(r"\d{1,4}(\.\d{1,4})*", version)
    ):
        raise DumpCorrupt(subject, why="it has no dump version")
    if int(version.split(".")[0]) != MAJOR:
        raise DumpVersion(
            subject, why=f"its format is version {version}, this holdfast reads {MAJOR}.x"
        )
    return _dump(content, version, rank_in_name(Path(subject).name))


def rank_in_name(name: str) -> int | None:
    """Return the rank in the name of a dump (``nccl_trace_rank_12``, ``_dump_12``), if any."""
    for pattern in _RANK_IN_NAME:
        if match := pattern.search(name[-255:]):
            return int(match[1])
    return None


def _decoded(data: bytes, subject: Path | str) -> Any:
    if plain_pickle.looks_like_pickle(data):
        try:
            return plain_pickle.load_plain_pickle(data)
        except plain_pickle.PickleTruncated as error:
            raise DumpTruncated(subject, why=str(error)) from error
        except plain_pickle.PickleRefused as error:
            raise DumpCorrupt(subject, why=str(error)) from error
    if not data:
        raise DumpTruncated(subject, why="it is empty")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        if data[:1] == b"{" and not data.rstrip().endswith(b"}"):
            raise DumpTruncated(subject) from error
        raise DumpCorrupt(subject) from error


# ---- conversion


def _dump(content: Mapping[Any, Any], version: str, rank: int | None) -> FlightRecorderDump:
    listed = content.get("entries")
    raw = listed[-flight_recorder_entries.MAX_ENTRIES :] if isinstance(listed, list) else []
    entries = flight_recorder_entries.convert_entries(raw)
    library = content.get("comm_lib_version", content.get("nccl_version"))
    return FlightRecorderDump(
        version=version,
        library=library[:64] if isinstance(library, str) else "",
        rank=rank,
        entries=tuple(entries),
        groups=_groups(content, entries),
        dropped=len(raw) - len(entries),
    )


def _groups(content: Mapping[Any, Any], entries: list[DumpEntry]) -> tuple[RecordedGroup, ...]:
    """Return the groups of ``pg_config`` and of the entries, with their status."""
    ids: dict[tuple[str, str], int | None] = dict(
        map(attrgetter("process_group", "group_id"), entries)
    )
    states = {
        int(key): status
        for key, status in _values(content, "pg_status", _status)
        if key.isdecimal()
    }
    groups = {
        group.name: group for _, group in _values(content, "pg_config", _group) if group.name
    }  # gloo writes ""
    groups = {name: RecordedGroup(name, description) for name, description in ids} | groups
    by_name = {name: number for (name, _), number in ids.items()}
    found = []
    for name, group in groups.items():
        number = by_name.get(name)
        status = None if number is None else states.pop(number, None)
        found.append(msgspec.structs.replace(group, id=number, status=status))
    return (
        *found,
        *(RecordedGroup("", id=number, status=status) for number, status in states.items()),
    )


def _values(
    content: Mapping[Any, Any], name: str, make: Callable[[Any], _T]
) -> Iterator[tuple[str, _T]]:
    """Yield the keys and converted values of a dict in the dump, without malformed ones."""
    values = content.get(name)
    for key, value in list(values.items())[:MAX_GROUPS] if isinstance(values, dict) else ():
        converted = convert_or_none(make, value)
        if converted is not None and isinstance(key, str) and len(key) <= 4096:
            yield key, converted


def _group(data: Mapping[str, Any]) -> RecordedGroup:
    ranks = data.get("ranks", "")
    numbers = re.findall(r"\d{1,9}", ranks) if isinstance(ranks, str) else [*ranks]
    return RecordedGroup(
        text(data["name"]), text(data.get("desc", "")), tuple(map(int, numbers)) or None
    )


def _status(data: Mapping[str, Any]) -> GroupStatus:
    return GroupStatus(
        *(
            number(data.get(f"last_{what}_collective", -1))
            for what in ("enqueued", "started", "completed")
        )
    )
