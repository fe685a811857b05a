"""What is kept of flight-recorder dumps: little of each rank, in tables that all ranks share; also as a file.

Of each dump stay: how far its groups came, the calls that are still open, and which call stood at which number, as
four bytes each into a table of distinct calls. Ranks can so be reduced where their dumps lie, node by node, and the
files be put together elsewhere, in any order and over any number of levels. Such a file is as hostile as a dump.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from holdfast.errors import DumpNoise
from holdfast.facts.dump_identity import MOST_RANKS, believable
from holdfast.facts.ranks import Operation, Place

SCHEMA: Literal["holdfast/dumps/1"] = "holdfast/dumps/1"
#: Four bytes a call.
WIDTH = 4
#: Open calls of one rank that are kept, the oldest first: a stuck device with a host that ran ahead has some dozens.
MOST_OPEN = 256
#: Bytes of one file: 16,384 ranks that all differ have a third of that.
MOST_BYTES = 512 << 20

_Rank = Annotated[int, msgspec.Meta(ge=0, lt=MOST_RANKS)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Index = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class Call(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one call was: equal calls of all ranks are one object. ``parts`` are the calls of a coalesced block."""

    name: str
    backend: str = ""
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    site: Place | None = None
    parts: tuple[_Index, ...] = ()


class Transfer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Sends or receives of one rank with one peer in one group: how many the ring holds, and those still open.

    ``whole`` is True where the ring holds all that there were. ``last`` is the number of the last of the group.
    ``after`` says for each of them, oldest first, which collective of the group ``anchor`` it came after; ``since`` is
    the first of those that the ring still holds. What two ranks called after the same collective can be compared, also
    where their rings have lost different calls.
    """

    group: str
    name: str
    peer: _Rank
    count: _Count
    last: _Count
    whole: bool
    open: tuple[Operation, ...]
    anchor: str = ""
    since: _Count = 0
    after: tuple[_Count, ...] = ()


class ReducedGroup(msgspec.Struct, array_like=True, gc=False):
    """One group as one dump has it. ``members`` and ``history`` are places in their tables; None where not known.

    The history begins at the call of number ``first``.
    """

    name: str
    members: _Index | None
    description: str = ""
    backend: str = ""
    entered: _Count = 0
    completed: _Count = 0
    first: _Count = 0
    history: _Index | None = None


class ReducedRank(msgspec.Struct, array_like=True, gc=False):
    """What stays of one dump. Numbers beside calls are places in ``groups``; ``newest`` is in Unix seconds."""

    rank: _Rank
    file: str
    newest: float
    has_sites: bool
    groups: list[ReducedGroup]
    pending: list[tuple[_Index, Operation]] = []
    recent: list[tuple[_Index, Operation]] = []
    transfers: list[tuple[_Index, Transfer]] = []


class Reduced(msgspec.Struct, kw_only=True):
    """Many ranks. Place 0 of ``calls`` stands where a ring has lost the call; ``histories`` hold WIDTH bytes a call."""

    schema: Literal["holdfast/dumps/1"] = SCHEMA
    members: list[tuple[_Rank, ...]] = []
    calls: list[Call] = msgspec.field(default_factory=lambda: [Call("")])
    histories: list[bytes] = []
    ranks: list[ReducedRank] = []
    unseen: list[str] = []


def encode(reduced: Reduced) -> bytes:
    """The file that :func:`decode` reads."""
    return msgspec.json.encode(reduced)


def decode(data: bytes, subject: str) -> Reduced:
    """What :func:`encode` made.

    Raises:
        DumpNoise: it is something else, or its numbers point nowhere.
    """
    try:
        found = msgspec.json.decode(data, type=Reduced)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise DumpNoise(subject, why="it is no whole file of reduced dumps") from error
    if any(_flaws(found)):
        raise DumpNoise(subject, why="its parts do not fit together")
    return found


def _flaws(found: Reduced) -> Iterator[object]:
    """True for each number that points nowhere, and for blocks in blocks; what follows may rely on there being none."""
    yield not found.calls or not all(believable(ranks) for ranks in found.members)
    yield any(part >= at or found.calls[part].parts for at, call in enumerate(found.calls) for part in call.parts)
    limit = len(found.calls)
    for history in found.histories:
        yield len(history) % WIDTH != 0 or max(memoryview(history).cast("I"), default=0) >= limit
    for rank in found.ranks:
        for group in rank.groups:
            yield group.members is not None and group.members >= len(found.members)
            yield group.history is not None and group.history >= len(found.histories)
        for listed in (rank.pending, rank.recent, rank.transfers):
            yield any(place >= len(rank.groups) for place, _ in listed)
