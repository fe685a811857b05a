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
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

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
_PEERS = re.compile(r" (\d{1,9})(?:->|<-)(\d{1,9})$")
_RANK_IN_NAME = (re.compile(r"rank_?(\d+)"), re.compile(r"(\d+)(?:\.\w+)?$"))

_MOST_CHARACTERS = 4096
_Number = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]
_Text = Annotated[str, msgspec.Meta(max_length=_MOST_CHARACTERS)]
_Size = Annotated[tuple[_Number, ...], msgspec.Meta(max_length=MOST_DIMENSIONS)]
_Sizes = Annotated[tuple[_Size, ...], msgspec.Meta(max_length=MOST_TENSORS)]
_Texts = Annotated[tuple[_Text, ...], msgspec.Meta(max_length=MOST_TENSORS)]


class State(StrEnum):
    """How far a call got."""

    SCHEDULED = "scheduled"
    STARTED = "started"
    COMPLETED = "completed"


class Title(NamedTuple):
    """What ``profiling_name`` says of a call; the numbers are ranks within the group."""

    backend: str
    name: str
    own: int | None = None
    peer: int | None = None


@lru_cache(maxsize=4096)
def title_of(text: str) -> Title:
    """The parts of ``nccl:all_reduce`` or ``nccl:send 0->3``."""
    backend, _, name = text.rpartition(":")
    peers = _PEERS.search(name)
    if peers is None:
        return Title(backend, name)
    return Title(backend, name[: peers.start()], int(peers[1]), int(peers[2]))


class Sites:
    """Finds the user's lines in stacks; a frame that several stacks of a dump share is looked at once."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[Place | None, bool]] = {}

    def of(self, frames: Any) -> Place | None:
        """The innermost frame of the user's own; only where there is none are the others looked at together."""
        if not isinstance(frames, list):
            return None
        known = self._places
        for frame in frames[:MOST_FRAMES]:
            place, own = known.get(id(frame)) or self._place(frame)
            if own:
                return place
        places = (known[id(frame)][0] for frame in frames[:MOST_FRAMES])
        return innermost_user(Stack(tuple(place for place in places if place is not None)))

    def _place(self, frame: Any) -> tuple[Place | None, bool]:
        found: tuple[Place | None, bool] = (None, False)
        if isinstance(frame, dict):
            file, line, name = (frame.get(key) for key in ("filename", "line", "name"))
            if isinstance(file, str) and type(line) is int and isinstance(name, str) and 0 <= line < 1 << 31:
                place = Place(file[:_MOST_CHARACTERS], line, name[:_MOST_CHARACTERS])
                found = (place, is_own(place.file))
        self._places[id(frame)] = found
        return found


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


class Entry(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    gc=False,
    rename={
        "number": "record_id", "title": "profiling_name", "group_id": "pg_id", "operation_sequence": "op_id",
        "collective_sequence": "collective_seq_id", "point_to_point_sequence": "p2p_seq_id", "marked_p2p": "is_p2p",
        "created_ns": "time_created_ns", "started_ns": "time_discovered_started_ns",
        "completed_ns": "time_discovered_completed_ns",
    },
):  # fmt: skip
    """One call; a dump holds them oldest first.

    Fields are as torch writes them: times are Unix nanoseconds, and of the last two, those at which a thread of torch
    noticed. Sizes are those of each tensor. ``title`` has the backend, the operation and its peers in one
    (:func:`title_of`), ``frames`` are the stack, innermost first.
    """

    title: _Text
    number: _Number = 0
    process_group: tuple[_Text, _Text]
    group_id: _Number | None = None
    collective_sequence: _Number = 0
    point_to_point_sequence: _Number = 0
    operation_sequence: _Number = 0
    marked_p2p: bool = False
    state: State = State.SCHEDULED
    retired: bool = False
    created_ns: _Number = 0
    started_ns: _Number | None = None
    completed_ns: _Number | None = None
    timeout_ms: float | None = None
    duration_ms: float | None = None
    input_sizes: _Sizes = ()
    output_sizes: _Sizes = ()
    input_dtypes: _Texts = ()
    output_dtypes: _Texts = ()
    frames: Any = None

    @property
    def group(self) -> str:
        """Name of the process group."""
        return self.process_group[0]

    @property
    def description(self) -> str:
        """What the program called the group."""
        return self.process_group[1]

    @property
    def backend(self) -> str:
        """``nccl``, ``gloo``; empty where the dump does not say."""
        return title_of(self.title).backend

    @property
    def name(self) -> str:
        """The operation, as torch names it: ``all_reduce``, ``_all_gather_base``, ``send``."""
        return title_of(self.title).name

    @property
    def peer(self) -> int | None:
        """The rank within the group that a send or receive names."""
        return title_of(self.title).peer

    @property
    def own(self) -> int | None:
        """This rank's number within the group, where a send or receive tells it."""
        return title_of(self.title).own

    @property
    def is_point_to_point(self) -> bool:
        """True for sends and receives, and for the call that closes a block of them."""
        return self.marked_p2p or title_of(self.title).peer is not None

    @property
    def created(self) -> float:
        """When it was enqueued, in Unix seconds."""
        return self.created_ns / 1e9

    @property
    def completed(self) -> float | None:
        """When its end was noticed, in Unix seconds; JSON has 0 where the pickle has None."""
        return self.completed_ns / 1e9 if self.completed_ns else None

    @property
    def started(self) -> float | None:
        """When its start on the device was noticed, in Unix seconds."""
        return self.started_ns / 1e9 if self.started_ns else None

    @property
    def site(self) -> Place | None:
        """The line of the user's that made the call."""
        return Sites().of(self.frames)

    @property
    def finished(self) -> bool:
        """True where the call is over, as far as its backend tells."""
        return self.state is State.COMPLETED or (self.retired and self.backend == "gloo")


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
#: Entries that are made at once, and the tensors of all that are kept: one list of sizes can stand in many entries.
_PORTION = 4096
_MOST_SIZES = 1 << 20


def _dump(content: Mapping[Any, Any], version: str, rank: int | None) -> Dump:
    listed = content.get("entries")
    entries = listed[-MOST_ENTRIES:] if isinstance(listed, list) else []
    made = _entries(entries)
    library = content.get("comm_lib_version", content.get("nccl_version"))
    return Dump(
        version=version, library=library[:64] if isinstance(library, str) else "", rank=rank, entries=tuple(made),
        groups=_groups(content, made), dropped=len(entries) - len(made),
    )  # fmt: skip


def _entries(listed: list[Any]) -> list[Entry]:
    """The entries that torch can have written: many at once, and one by one where a portion holds an odd one."""
    made: list[Entry] = []
    sizes = 0
    for begin in range(0, len(listed), _PORTION):
        portion = listed[begin : begin + _PORTION]
        try:
            found = msgspec.convert(portion, list[Entry], strict=False)
        except (msgspec.ValidationError, OverflowError):
            found = [entry for each in portion if (entry := _or_none(_odd_entry, each)) is not None]
        sizes += sum(len(each.input_sizes) + len(each.output_sizes) + len(each.input_dtypes) for each in found)
        if sizes > _MOST_SIZES:
            break
        made += found
    return made


def _odd_entry(given: Mapping[str, Any]) -> Entry:
    """An entry of the first versions, which know a group by its id alone, or one with more than is kept of it."""
    more: dict[str, Any] = {}
    if "process_group" not in given:
        more["process_group"] = (str(_number(given["pg_id"])), "")
    if "collective_seq_id" not in given:
        more["collective_seq_id"] = given.get("seq_id", 0)
    for name in ("input_sizes", "output_sizes"):
        more[name] = [size[:MOST_DIMENSIONS] for size in (given.get(name) or [])[:MOST_TENSORS]]
    for name in ("input_dtypes", "output_dtypes"):
        types = given.get(name) or []
        more[name] = [types] if isinstance(types, str) else types[:MOST_TENSORS]
    more["profiling_name"] = given["profiling_name"][:_MOST_CHARACTERS]
    return msgspec.convert({**given, **more}, Entry, strict=False)


def _or_none(make: Callable[[Any], _T], value: Any) -> _T | None:
    try:
        return make(value)
    except _WRONG:
        return None


def _groups(content: Mapping[Any, Any], entries: list[Entry]) -> tuple[RecordedGroup, ...]:
    """The groups of ``pg_config`` and of entries, with their status; one whose id no entry names keeps that alone."""
    ids = {entry.process_group: entry.group_id for entry in entries}
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
        made = _or_none(make, value)
        if made is not None and isinstance(key, str) and len(key) <= 4096:
            yield key, made


def _group(given: Mapping[str, Any]) -> RecordedGroup:
    ranks = given.get("ranks", "")
    numbers = re.findall(r"\d{1,9}", ranks) if isinstance(ranks, str) else [*ranks]
    return RecordedGroup(_text(given["name"]), _text(given.get("desc", "")), tuple(map(int, numbers)) or None)


def _status(given: Mapping[str, Any]) -> Status:
    return Status(*(_number(given.get(f"last_{what}_collective", -1)) for what in ("enqueued", "started", "completed")))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value[:_MOST_CHARACTERS]


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
