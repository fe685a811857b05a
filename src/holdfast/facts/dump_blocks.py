"""Sorts the entries of one dump into collectives, and sends and receives, and puts coalesced blocks together."""

from __future__ import annotations

import re
from collections import defaultdict

from holdfast.facts.flight_recorder import Entry

#: One call although its name ends as that of a call that closes a block does.
_NO_BLOCK = re.compile(r"^_?(all_?reduce|reduce_scatter_tensor|all_?gather_into_tensor)_coalesced$", re.IGNORECASE)


class Blocks:
    """The entries of a dump: collectives by group and number, sends and receives by group.

    Calls inside a coalescing block never get a state, and the one that closes it has no peer and no sizes. It carries
    the number of the block, and, where that held sends and receives, also that of the last collective before.
    """

    def __init__(self) -> None:
        self.collectives: dict[str, dict[int, list[Entry]]] = defaultdict(dict)
        self.transfers: dict[str, list[Entry]] = defaultdict(list)
        self.reached: dict[str, int] = {}
        self.finished: dict[int, bool] = {}
        self._previous: dict[str, Entry] = {}

    def add(self, entry: Entry) -> None:
        """The next entry of the dump."""
        group, number = entry.group, entry.collective_sequence
        self.reached[group] = max(self.reached.get(group, 0), number)
        before = self._previous.get(group)
        self._previous[group] = entry
        if entry.peer is not None:
            self.finished[entry.number] = entry.finished
            self.transfers[group].append(entry)
        elif entry.is_point_to_point or _closes_transfers(entry, before):
            self._close(entry)
        elif number > 0:
            self.collectives[group].setdefault(number, []).append(entry)

    def _close(self, entry: Entry) -> None:
        """The end of a block of sends and receives: they are over when it is."""
        for part in reversed(self.transfers[entry.group]):
            if part.point_to_point_sequence != entry.point_to_point_sequence:
                return
            self.finished[part.number] = entry.finished


def _closes(entry: Entry) -> bool:
    return entry.name.endswith("coalesced") and not _NO_BLOCK.match(entry.name)


def _closes_transfers(entry: Entry, before: Entry | None) -> bool:
    """True for the end of a block of sends and receives, whether or not the ring still holds these."""
    if not _closes(entry) or before is None:
        return False
    return before.peer is not None or entry.point_to_point_sequence > before.point_to_point_sequence
