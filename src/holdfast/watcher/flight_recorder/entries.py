"""Entries of the flight recorder: one call each, with the fields that torch writes, validated."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from holdfast.core.rank_table import SourceLine, ThreadStack
from holdfast.host.processes.user_code import innermost_user_frame, is_user_file

#: Limits: the newest entries, and per entry frames, tensors and dimensions.
MAX_ENTRIES = 1 << 17
MAX_FRAMES = 128
MAX_TENSORS = 64
MAX_DIMENSIONS = 16
#: Entries converted at once, and sizes in all entries: a pickle can share one list among many.
_CHUNK = 4096
_MAX_SIZES = 1 << 20
_CONVERSION_ERRORS = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)

_T = TypeVar("_T")
_PEERS = re.compile(r" (\d{1,9})(?:->|<-)(\d{1,9})$")
_MAX_CHARACTERS = 4096
_Number = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]
_Text = Annotated[str, msgspec.Meta(max_length=_MAX_CHARACTERS)]
_Size = Annotated[tuple[_Number, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]
_Sizes = Annotated[tuple[_Size, ...], msgspec.Meta(max_length=MAX_TENSORS)]
_Texts = Annotated[tuple[_Text, ...], msgspec.Meta(max_length=MAX_TENSORS)]


class EntryState(StrEnum):
    """How far a call got."""

    SCHEDULED = "scheduled"
    STARTED = "started"
    COMPLETED = "completed"


class Title(NamedTuple):
    """The parts of ``profiling_name``; ``own`` and ``peer`` are ranks within the group."""

    backend: str
    name: str
    own: int | None = None
    peer: int | None = None


@lru_cache(maxsize=4096)
def title_of(text: str) -> Title:
    """Parse ``nccl:all_reduce`` or ``nccl:send 0->3``."""
    backend, _, name = text.rpartition(":")
    peers = _PEERS.search(name)
    if peers is None:
        return Title(backend, name)
    return Title(backend, name[: peers.start()], int(peers[1]), int(peers[2]))


class CallSites:
    """Finds call sites in stacks; a frame that several stacks of a dump share is parsed once."""

    def __init__(self) -> None:
        self._lines: dict[int, tuple[SourceLine | None, bool]] = {}

    def of(self, frames: Any) -> SourceLine | None:
        """Return the innermost frame in user code, else of other installed code."""
        if not isinstance(frames, list):
            return None
        known = self._lines
        for frame in islice(frames, MAX_FRAMES):
            line, is_user = known.get(id(frame)) or self._parse(frame)
            if is_user:
                return line
        lines = (known[id(frame)][0] for frame in frames[:MAX_FRAMES])
        return innermost_user_frame(ThreadStack(tuple(line for line in lines if line is not None)))

    def _parse(self, frame: Any) -> tuple[SourceLine | None, bool]:
        found: tuple[SourceLine | None, bool] = (None, False)
        if isinstance(frame, dict):
            file, line, name = (frame.get(key) for key in ("filename", "line", "name"))
            if (
                isinstance(file, str)
                and type(line) is int
                and isinstance(name, str)
                and 0 <= line < 1 << 31
            ):
                location = SourceLine(file[:_MAX_CHARACTERS], line, name[:_MAX_CHARACTERS])
                found = (location, is_user_file(location.file))
        self._lines[id(frame)] = found
        return found


class DumpEntry(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    gc=False,
    rename={
        "number": "record_id",
        "title": "profiling_name",
        "group_id": "pg_id",
        "collective_sequence": "collective_seq_id",
        "point_to_point_sequence": "p2p_seq_id",
        "marked_p2p": "is_p2p",
        "created_ns": "time_created_ns",
        "completed_ns": "time_discovered_completed_ns",
    },
):
    """One call; a dump holds them oldest first.

    Fields are as torch writes them. Times are Unix nanoseconds; ``completed_ns`` is when a thread
    of torch detected completion. Sizes are per tensor. ``title`` contains backend, operation and
    peers (:func:`title_of`); ``frames`` is the stack, innermost first.
    """

    title: _Text
    number: _Number = 0
    process_group: tuple[_Text, _Text]
    group_id: _Number | None = None
    collective_sequence: _Number = 0
    point_to_point_sequence: _Number = 0
    marked_p2p: bool = False
    state: EntryState = EntryState.SCHEDULED
    retired: bool = False
    created_ns: _Number = 0
    completed_ns: _Number | None = None
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
        """The description that the program gave the group."""
        return self.process_group[1]

    @property
    def backend(self) -> str:
        """``nccl``, ``gloo``; empty if unknown."""
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
        """This rank's number within the group, in a send or receive."""
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
        """When its end was detected, in Unix seconds; JSON has 0 where the pickle has None."""
        return self.completed_ns / 1e9 if self.completed_ns else None

    @property
    def site(self) -> SourceLine | None:
        """The line in user code that made the call."""
        return CallSites().of(self.frames)

    @property
    def finished(self) -> bool:
        """True if the call is complete, as far as its backend reports."""
        return self.state is EntryState.COMPLETED or (self.retired and self.backend == "gloo")


def convert_entries(raw: list[Any]) -> list[DumpEntry]:
    """Convert the entries, many at once, and one by one in a chunk with a malformed entry."""
    entries: list[DumpEntry] = []
    sizes = 0
    for begin in range(0, len(raw), _CHUNK):
        chunk = raw[begin : begin + _CHUNK]
        try:
            converted = msgspec.convert(chunk, list[DumpEntry], strict=False)
        except (msgspec.ValidationError, OverflowError):
            converted = [
                entry
                for item in chunk
                if (entry := convert_or_none(_convert_irregular, item)) is not None
            ]
        if len(raw) > _CHUNK:  # a single chunk cannot exceed the limit
            sizes += sum(
                len(entry.input_sizes) + len(entry.output_sizes) + len(entry.input_dtypes)
                for entry in converted
            )
        if sizes > _MAX_SIZES:
            break
        entries += converted
    return entries


def _convert_irregular(data: Mapping[str, Any]) -> DumpEntry:
    """Convert an entry of an early version, which has only a group id, or one over the limits."""
    changed: dict[str, Any] = {}
    if "process_group" not in data:
        changed["process_group"] = (str(number(data["pg_id"])), "")
    if "collective_seq_id" not in data:
        changed["collective_seq_id"] = data.get("seq_id", 0)
    for name in ("input_sizes", "output_sizes"):
        changed[name] = [size[:MAX_DIMENSIONS] for size in (data.get(name) or [])[:MAX_TENSORS]]
    for name in ("input_dtypes", "output_dtypes"):
        types = data.get(name) or []
        changed[name] = [types] if isinstance(types, str) else types[:MAX_TENSORS]
    changed["profiling_name"] = data["profiling_name"][:_MAX_CHARACTERS]
    return msgspec.convert({**data, **changed}, DumpEntry, strict=False)


def convert_or_none(convert: Callable[[Any], _T], value: Any) -> _T | None:
    """Convert the value; return None if it is malformed."""
    try:
        return convert(value)
    except _CONVERSION_ERRORS:
        return None


def text(value: Any) -> str:
    """Return a text, truncated. Raises TypeError if it is none."""
    if not isinstance(value, str):
        raise TypeError(value)
    return value[:_MAX_CHARACTERS]


def number(value: Any) -> int:
    """Return a number of at least -1, which some versions write as text.

    Raises TypeError or ValueError if it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(type(value))
    found = int(value[:20]) if isinstance(value, str) else value
    if not -1 <= found < 1 << 63:
        raise ValueError(found)
    return found
