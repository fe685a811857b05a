"""The entries of the flight recorder: one call each, with the fields that torch writes, checked while they are made."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from holdfast.facts.ranks import Place, Stack
from holdfast.facts.user_code import innermost_user, is_own

#: The newest entries are kept; of each entry, so many frames and tensors are looked at, and so many dimensions.
MOST_ENTRIES = 1 << 17
MOST_FRAMES = 128
MOST_TENSORS = 64
MOST_DIMENSIONS = 16
#: Entries that are made at once, and the tensors of all that are kept: one list of sizes can stand in many entries.
_PORTION = 4096
_MOST_SIZES = 1 << 20
_WRONG = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)

_T = TypeVar("_T")
_PEERS = re.compile(r" (\d{1,9})(?:->|<-)(\d{1,9})$")
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
        for frame in islice(frames, MOST_FRAMES):
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


class Entry(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    gc=False,
    rename={
        "number": "record_id", "title": "profiling_name", "group_id": "pg_id",
        "collective_sequence": "collective_seq_id", "point_to_point_sequence": "p2p_seq_id", "marked_p2p": "is_p2p",
        "created_ns": "time_created_ns",
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
    marked_p2p: bool = False
    state: State = State.SCHEDULED
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
    def site(self) -> Place | None:
        """The line of the user's that made the call."""
        return Sites().of(self.frames)

    @property
    def finished(self) -> bool:
        """True where the call is over, as far as its backend tells."""
        return self.state is State.COMPLETED or (self.retired and self.backend == "gloo")


def entries(listed: list[Any]) -> list[Entry]:
    """The entries that torch can have written: many at once, and one by one where a portion holds an odd one."""
    made: list[Entry] = []
    sizes = 0
    for begin in range(0, len(listed), _PORTION):
        portion = listed[begin : begin + _PORTION]
        try:
            found = msgspec.convert(portion, list[Entry], strict=False)
        except (msgspec.ValidationError, OverflowError):
            found = [entry for each in portion if (entry := or_none(_odd_entry, each)) is not None]
        if len(listed) > _PORTION:  # of one portion alone there cannot be too many
            sizes += sum(len(each.input_sizes) + len(each.output_sizes) + len(each.input_dtypes) for each in found)
        if sizes > _MOST_SIZES:
            break
        made += found
    return made


def _odd_entry(given: Mapping[str, Any]) -> Entry:
    """An entry of the first versions, which know a group by its id alone, or one with more than is kept of it."""
    more: dict[str, Any] = {}
    if "process_group" not in given:
        more["process_group"] = (str(number(given["pg_id"])), "")
    if "collective_seq_id" not in given:
        more["collective_seq_id"] = given.get("seq_id", 0)
    for name in ("input_sizes", "output_sizes"):
        more[name] = [size[:MOST_DIMENSIONS] for size in (given.get(name) or [])[:MOST_TENSORS]]
    for name in ("input_dtypes", "output_dtypes"):
        types = given.get(name) or []
        more[name] = [types] if isinstance(types, str) else types[:MOST_TENSORS]
    more["profiling_name"] = given["profiling_name"][:_MOST_CHARACTERS]
    return msgspec.convert({**given, **more}, Entry, strict=False)


def or_none(make: Callable[[Any], _T], value: Any) -> _T | None:
    """What ``make`` makes of the value; None where it is not what torch writes."""
    try:
        return make(value)
    except _WRONG:
        return None


def text(value: Any) -> str:
    """A text, bounded. Raises TypeError: it is none."""
    if not isinstance(value, str):
        raise TypeError(value)
    return value[:_MOST_CHARACTERS]


def number(value: Any) -> int:
    """A number from -1 up, which some versions write as text. Raises TypeError or ValueError: it is none."""
    if type(value) is int and -1 <= value < 1 << 63:
        return value
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(type(value))
    found = int(value[:20]) if isinstance(value, str) else value
    if not -1 <= found < 1 << 63:
        raise ValueError(found)
    return found
