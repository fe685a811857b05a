"""Reduced flight-recorder dumps: small records per rank and tables shared by all ranks; as a file.

Of each dump remain the progress of its process groups, the open calls, and the history of calls, as
four bytes per call into a table of distinct calls. Dumps can thus be reduced node by node, and the
files merged elsewhere, in any order and over any number of levels. A file of reduced dumps is
untrusted input.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from holdfast.core.errors import DumpCorrupt
from holdfast.core.rank_table import RecordedCall, SourceLine
from holdfast.diagnose.dumps.dump_identity import MAX_RANKS, is_valid_members

SCHEMA: Literal["holdfast/dumps/1"] = "holdfast/dumps/1"
#: Bytes per call of a history.
CALL_BYTES = 4
#: Open calls kept per rank, oldest first: a stuck device whose host ran ahead has some dozens.
MAX_OPEN_CALLS = 256
#: Maximum file size: 16,384 ranks without a common call take a third of it.
MAX_BYTES = 512 << 20

_Rank = Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Index = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class CallSignature(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The properties of a call; equal calls of all ranks share one object.

    ``parts`` are the indices of the calls of a coalesced block.
    """

    name: str
    backend: str = ""
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    site: SourceLine | None = None
    parts: tuple[_Index, ...] = ()


class PeerTransfers(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The sends, or the receives, of one rank with one peer in one group.

    ``count`` is the number of calls in the ring buffer; ``whole``: it has lost none. ``last`` is
    the number of the group's last point-to-point call. ``after`` is, for each call, oldest first,
    the collective of the group ``anchor`` that preceded it; ``since`` is the first collective
    still recorded. Calls of two ranks after the same collective can thus be compared even if their
    ring buffers have lost different calls.
    """

    group: str
    name: str
    peer: _Rank
    count: _Count
    last: _Count
    whole: bool
    open: tuple[RecordedCall, ...]
    anchor: str = ""
    since: _Count = 0
    after: tuple[_Count, ...] = ()


class ReducedGroup(msgspec.Struct, array_like=True, gc=False):
    """One process group in one dump.

    ``members`` and ``history`` are indices into their tables; None if unknown. The history begins
    with the call number ``first``.
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
    """One reduced dump. Calls are paired with an index into ``groups``; ``newest`` is in Unix s."""

    rank: _Rank
    file: str
    newest: float
    has_sites: bool
    groups: list[ReducedGroup]
    pending: list[tuple[_Index, RecordedCall]] = []
    recent: list[tuple[_Index, RecordedCall]] = []
    transfers: list[tuple[_Index, PeerTransfers]] = []


class ReducedDumps(msgspec.Struct, kw_only=True):
    """The reduced dumps of many ranks.

    Index 0 of ``calls`` stands for a call that the ring buffer has lost; ``histories`` hold
    CALL_BYTES per call.
    """

    schema: Literal["holdfast/dumps/1"] = SCHEMA
    members: list[tuple[_Rank, ...]] = []
    calls: list[CallSignature] = msgspec.field(default_factory=lambda: [CallSignature("")])
    histories: list[bytes] = []
    ranks: list[ReducedRank] = []
    unseen: list[str] = []


def encode(reduced: ReducedDumps) -> bytes:
    """Return the file content that :func:`decode` reads."""
    return msgspec.json.encode(reduced)


def decode(data: bytes, subject: str) -> ReducedDumps:
    """Return the reduced dumps in ``data``.

    Raises:
        DumpCorrupt: the data has another form, or contains an index out of range.
    """
    try:
        reduced = msgspec.json.decode(data, type=ReducedDumps)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise DumpCorrupt(subject, why="not a complete file of reduced dumps") from error
    if any(_find_flaws(reduced)):
        raise DumpCorrupt(subject, why="its parts contradict each other")
    return reduced


def _find_flaws(reduced: ReducedDumps) -> Iterator[object]:
    """Yield a true value per index out of range and per block in a block; readers rely on none."""
    yield not reduced.calls or not all(is_valid_members(ranks) for ranks in reduced.members)
    yield any(
        part >= index or reduced.calls[part].parts
        for index, call in enumerate(reduced.calls)
        for part in call.parts
    )
    limit = len(reduced.calls)
    for history in reduced.histories:
        yield len(history) % CALL_BYTES or max(memoryview(history).cast("I"), default=0) >= limit
    for rank in reduced.ranks:
        for group in rank.groups:
            yield group.members is not None and group.members >= len(reduced.members)
            yield group.history is not None and group.history >= len(reduced.histories)
        for listed in (rank.pending, rank.recent, rank.transfers):
            yield any(index >= len(rank.groups) for index, _ in listed)
