"""Sorts the entries of one dump into collectives, and sends and receives, and puts coalesced blocks together."""

from __future__ import annotations

import re
from operator import attrgetter

from holdfast.facts.recorded_entries import Entry, title_of

#: One call although its name ends as that of a call that closes a block does.
_NO_BLOCK = re.compile(r"^_?(all_?reduce|reduce_scatter_tensor|all_?gather_into_tensor)_coalesced$", re.IGNORECASE)


class GroupBlocks:
    """The calls of one group: collectives by number, sends and receives in order, how far either is."""

    __slots__ = ("_number", "collectives", "finished", "mixed", "previous", "transfers")

    def __init__(self) -> None:
        self.collectives: dict[int, list[Entry]] = {}
        self.transfers: list[Entry] = []
        #: True where the group has sends and receives, even if the ring has lost them.
        self.mixed = False
        #: By record number, for sends and receives: those in a block are over when the block is.
        self.finished: dict[int, bool] = {}
        self.previous: Entry | None = None
        self._number = 0

    @property
    def reached(self) -> int:
        """The highest number of a collective that any call of the group bears."""
        return max(self._number, max(self.collectives, default=0))

    def add(self, entry: Entry) -> None:
        """The next entry of the group, if it may be more than a collective by itself.

        Calls inside a coalescing block never get a state, and the one that closes it has no peer and no sizes. It has
        the number of the block, and, where that held sends and receives, also that of the last collective before.
        """
        title = title_of(entry.title)
        self._number = max(self._number, entry.collective_sequence)
        if title.peer is not None:
            self.mixed = True
            self.finished[entry.number] = entry.finished
            self.transfers.append(entry)
        elif entry.marked_p2p or (_closes(title.name) and _closes_transfers(entry, self.previous)):
            self._close(entry)
        elif entry.collective_sequence > 0:
            self.collectives.setdefault(entry.collective_sequence, []).append(entry)

    def _close(self, entry: Entry) -> None:
        """The end of a block of sends and receives: they are over when it is."""
        self.mixed = True
        for part in reversed(self.transfers):
            if part.point_to_point_sequence != entry.point_to_point_sequence:
                return
            self.finished[part.number] = entry.finished


def by_group(entries: tuple[Entry, ...]) -> dict[str, GroupBlocks]:
    """The entries of a dump, sorted by group."""
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
    """True for a call that is neither a send nor a receive, and closes no block."""
    return title_of(title).peer is None and not _closes(title_of(title).name)


def _closes(name: str) -> bool:
    return name.endswith("coalesced") and not _NO_BLOCK.match(name)


def _closes_transfers(entry: Entry, before: Entry | None) -> bool:
    """True where the block held sends and receives, whether or not the ring still holds these."""
    if before is None:
        return False
    return before.peer is not None or entry.point_to_point_sequence > before.point_to_point_sequence
