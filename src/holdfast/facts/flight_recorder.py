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
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from holdfast.errors import DumpNoise, DumpTruncated, DumpUnreadable, DumpVersion
from holdfast.facts import plain_pickle
from holdfast.facts.ranks import Place, Stack
from holdfast.facts.user_code import innermost_user, is_own

#: A dump of 2,000 calls with 30 frames each has 0.4 MB as a pickle and 0.9 MB as JSON.
MOST_BYTES = 32 << 20
#: The newest entries are kept; of each entry, so many frames and tensors are looked at, and so many dimensions.
MOST_ENTRIES = 1 << 17
MOST_GROUPS = 1 << 14
MOST_FRAMES = 128
MOST_TENSORS = 64
MOST_DIMENSIONS = 16
MAJOR = 2

_T = TypeVar("_T")
#: Backend, name, own number and peer's number of a call.
_Title = tuple[str, str, int | None, int | None]
_PEERS = re.compile(r" (\d+)(?:->|<-)(\d+)$")
_RANK_IN_NAME = (re.compile(r"rank_?(\d+)"), re.compile(r"(\d+)(?:\.\w+)?$"))


class State(StrEnum):
    """How far a call got."""

    SCHEDULED = "scheduled"
    STARTED = "started"
    COMPLETED = "completed"


_STATES = {state.value: state for state in State}


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


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One call; a dump holds them oldest first.

    Times are Unix seconds; ``started`` and ``completed`` are when a thread of torch noticed. Sizes are those of each
    tensor. ``peer`` is the rank within the group that a send or receive names, ``own`` the rank's own number there.
    """

    number: int
    group: str
    description: str
    group_id: int | None
    collective_sequence: int
    point_to_point_sequence: int
    operation_sequence: int
    name: str
    backend: str = ""
    is_point_to_point: bool = False
    peer: int | None = None
    own: int | None = None
    state: State = State.SCHEDULED
    retired: bool = False
    created: float = 0.0
    started: float | None = None
    completed: float | None = None
    timeout_s: float | None = None
    duration_s: float | None = None
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    site: Place | None = None

    @property
    def finished(self) -> bool:
        """True where the call is over, as far as its backend tells."""
        return self.state is State.COMPLETED or (self.backend == "gloo" and self.retired)


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


# ---- from torch's words to ours; whatever raises here is an entry that torch did not write


_WRONG = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)


def _dump(content: Mapping[Any, Any], version: str, rank: int | None) -> Dump:
    listed = content.get("entries")
    entries = listed[-MOST_ENTRIES:] if isinstance(listed, list) else []
    make = _EntryMaker()
    made = [entry for each in entries if (entry := _or_none(make, each)) is not None]
    library = content.get("comm_lib_version", content.get("nccl_version"))
    return Dump(
        version=version, library=library[:64] if isinstance(library, str) else "", rank=rank, entries=tuple(made),
        groups=_groups(content, made), dropped=len(entries) - len(made),
    )  # fmt: skip


def _or_none(make: Callable[[Any], _T], value: Any) -> _T | None:
    try:
        return make(value)
    except _WRONG:
        return None


def _groups(content: Mapping[Any, Any], entries: list[Entry]) -> tuple[RecordedGroup, ...]:
    """The groups of ``pg_config`` and of entries, with their status; one whose id no entry names keeps that alone."""
    ids = {entry.group: entry.group_id for entry in entries}
    states = {int(key): status for key, status in _values(content, "pg_status", _status) if key.isdecimal()}
    groups = {group.name: group for _, group in _values(content, "pg_config", _group) if group.name}  # gloo writes ""
    groups = {entry.group: RecordedGroup(entry.group, entry.description) for entry in entries} | groups
    found = []
    for name, group in groups.items():
        number = ids.get(name)
        status = None if number is None else states.pop(number, None)
        found.append(msgspec.structs.replace(group, id=number, status=status))
    return (*found, *(RecordedGroup("", id=number, status=status) for number, status in states.items()))


def _values(content: Mapping[Any, Any], name: str, make: Callable[[Any], _T]) -> Iterator[tuple[str, _T]]:
    """The values of a dict in the dump that can be made, with their keys."""
    given = content.get(name)
    for key, value in list(given.items())[:MOST_GROUPS] if isinstance(given, dict) else ():
        made = _or_none(make, value)
        if made is not None and isinstance(key, str) and len(key) <= 4096:
            yield key, made


def _group(given: Mapping[str, Any]) -> RecordedGroup:
    ranks = given.get("ranks", "")
    numbers = re.findall(r"\d{1,9}", ranks) if isinstance(ranks, str) else [*ranks]
    return RecordedGroup(_text(given["name"]), _text(given.get("desc", "")), tuple(map(int, numbers)) or None)


def _status(given: Mapping[str, Any]) -> Status:
    return Status(*(_number(given.get(f"last_{what}_collective", -1)) for what in ("enqueued", "started", "completed")))


class _EntryMaker:
    """Makes entries. What entries share is worked out once: frames, titles, groups, sizes and types."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[Place, bool]] = {}
        self._dtypes: dict[str | tuple[str, ...], tuple[str, ...]] = {}
        self._titles: dict[str, _Title] = {}
        self._sizes: dict[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]] = {}

    def __call__(self, given: Mapping[str, Any]) -> Entry:
        backend, name, own, peer = self._title(given["profiling_name"])
        group, description = _group_of(given)
        group_id = given.get("pg_id")
        get = given.get
        return Entry(
            number=_number(get("record_id", 0)), group=group, description=description,
            group_id=None if group_id is None else _number(group_id), backend=backend, name=name, peer=peer, own=own,
            collective_sequence=_number(get("collective_seq_id", get("seq_id", 0))),
            point_to_point_sequence=_number(get("p2p_seq_id", 0)),
            operation_sequence=_number(get("op_id", 0)),
            is_point_to_point=get("is_p2p") is True or peer is not None,
            state=_STATES[get("state", "scheduled")], retired=get("retired") is True,
            created=_number(get("time_created_ns", 0)) / 1e9,
            started=_moment(get("time_discovered_started_ns")),
            completed=_moment(get("time_discovered_completed_ns")),
            timeout_s=_scaled(get("timeout_ms")), duration_s=_scaled(get("duration_ms")),
            input_sizes=self._sizes_of(get("input_sizes")), output_sizes=self._sizes_of(get("output_sizes")),
            input_dtypes=self._dtypes_of(get("input_dtypes")),
            output_dtypes=self._dtypes_of(get("output_dtypes")),
            site=self._site(get("frames")),
        )  # fmt: skip

    def _title(self, given: Any) -> _Title:
        found = self._titles.get(given)
        if found is None:
            title = _text(given)
            backend, _, name = title.rpartition(":") if ":" in title else ("", "", title)
            peers = _PEERS.search(name)
            if peers:
                found = (backend, name[: peers.start()], int(peers[1][:9]), int(peers[2][:9]))
            else:
                found = (backend, name, None, None)
            self._titles[given] = found
        return found

    def _sizes_of(self, given: Any) -> tuple[tuple[int, ...], ...]:
        key = tuple(map(tuple, given or ()))
        found = self._sizes.get(key)
        if found is None:
            found = self._sizes[key] = _sizes(given)
        return found

    def _dtypes_of(self, given: Any) -> tuple[str, ...]:
        key = given if isinstance(given, str) else tuple(given or ())
        found = self._dtypes.get(key)
        if found is None:
            found = self._dtypes[key] = _dtypes(given)
        return found

    def _site(self, frames: Any) -> Place | None:
        """The innermost frame of the user's own; only where there is none are the others looked at together."""
        if not isinstance(frames, list):
            return None
        for frame in frames[:MOST_FRAMES]:
            place, own = self._places.get(id(frame)) or self._place(frame)
            if own:
                return place
        return innermost_user(Stack(tuple(self._places[id(frame)][0] for frame in frames[:MOST_FRAMES])))

    def _place(self, frame: Mapping[str, Any]) -> tuple[Place, bool]:
        place = Place(_text(frame["filename"]), _number(frame["line"]), _text(frame["name"]))
        made = self._places[id(frame)] = (place, is_own(place.file))
        return made


def _group_of(given: Mapping[str, Any]) -> tuple[str, str]:
    """Name and description; dumps of the first versions know the id alone, which then serves as the name."""
    both = given.get("process_group")
    if both is None:
        return str(_number(given["pg_id"])), ""
    name, description = both
    return _text(name), _text(description)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value[:4096]


def _number(value: Any) -> int:
    """A number, which some versions write as text."""
    if type(value) is int and -1 <= value < 1 << 63:
        return value
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(type(value))
    number = int(value[:20]) if isinstance(value, str) else value
    if not -1 <= number < 1 << 63:
        raise ValueError(number)
    return number


def _moment(value: Any) -> float | None:
    """Nanoseconds as seconds; JSON has 0 where the pickle has None."""
    return _number(value) / 1e9 if value else None


def _scaled(value: Any) -> float | None:
    """Milliseconds as seconds."""
    return float(value) / 1e3 if isinstance(value, int | float) else None


def _sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(_number(size) for size in tensor[:MOST_DIMENSIONS]) for tensor in (value or [])[:MOST_TENSORS])


def _dtypes(value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value or []
    return tuple(_text(name) for name in names[:MOST_TENSORS])
