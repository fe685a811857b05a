"""Sort the entries of one dump into collectives and point-to-point calls; join coalesced blocks."""

from __future__ import annotations

import re
from operator import attrgetter

from holdfast.watcher.flight_recorder.entries import DumpEntry, title_of

#: Single calls whose names end like the call that closes a coalescing block.
_SINGLE_CALL = re.compile(
    r"^_?(all_?reduce|reduce_scatter_tensor|all_?gather_into_tensor)_coalesced$", re.IGNORECASE
)


class GroupBlocks:
    """The calls of one process group: collectives by number, point-to-point calls in order."""

    __slots__ = ("_number", "collectives", "finished", "mixed", "previous", "transfers")

    def __init__(self) -> None:
        self.collectives: dict[int, list[DumpEntry]] = {}
        self.transfers: list[DumpEntry] = []
        #: Whether the group has point-to-point calls, even if the ring buffer has lost them.
        self.mixed = False
        #: By record number of point-to-point calls: those in a block complete with the block.
        self.finished: dict[int, bool] = {}
        self.previous: DumpEntry | None = None
        self._number = 0

    @property
    def reached(self) -> int:
        """The highest collective number of any call of the group."""
        return max(self._number, max(self.collectives, default=0))

    def add(self, entry: DumpEntry) -> None:
        """Add the next entry of the group if it may be more than a single collective.

        Calls in a coalescing block never get a state, and the call that closes it has no peer and
        no sizes. It has the number of the block and, after point-to-point calls, also the number of
        the last collective before it.
        """
        title = title_of(entry.title)
        self._number = max(self._number, entry.collective_sequence)
        if title.peer is not None:
            self.mixed = True
            self.finished[entry.number] = entry.finished
            self.transfers.append(entry)
        elif entry.marked_p2p or (
            _closes_block(title.name) and _closes_transfers(entry, self.previous)
        ):
            self._close_transfers(entry)
        elif entry.collective_sequence > 0:
            self.collectives.setdefault(entry.collective_sequence, []).append(entry)

    def _close_transfers(self, entry: DumpEntry) -> None:
        """Give the point-to-point calls of a block the state of the call that closes it."""
        self.mixed = True
        for part in reversed(self.transfers):
            if part.point_to_point_sequence != entry.point_to_point_sequence:
                return
            self.finished[part.number] = entry.finished


def group_entries(entries: tuple[DumpEntry, ...]) -> dict[str, GroupBlocks]:
    """Return the entries of a dump by process group."""
    groups = {name: GroupBlocks() for name, _ in set(map(attrgetter("process_group"), entries))}
    plain = {title for title in set(map(attrgetter("title"), entries)) if _is_plain(title)}
    for entry in entries:
        group, number = groups[entry.process_group[0]], entry.collective_sequence
        if entry.title not in plain or entry.marked_p2p or number < 1:
            group.add(entry)
        elif number in group.collectives:
            group.collectives[number].append(entry)
        else:
            group.collectives[number] = [entry]
        group.previous = entry
    return groups


def _is_plain(title: str) -> bool:
    """Return whether the call is not point-to-point and does not close a block."""
    return title_of(title).peer is None and not _closes_block(title_of(title).name)


def _closes_block(name: str) -> bool:
    return name.endswith("coalesced") and not _SINGLE_CALL.match(name)


def _closes_transfers(entry: DumpEntry, before: DumpEntry | None) -> bool:
    """Return whether the block had point-to-point calls, even if the ring buffer has lost them."""
    if before is None:
        return False
    return before.peer is not None or entry.point_to_point_sequence > before.point_to_point_sequence
