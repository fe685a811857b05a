"""From every host to every other, as a picture: one letter a pair."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.facts.reach import Fate, Gathered

#: Letter -> what it says; the first ones are no faults.
LEGEND: Mapping[str, str] = {
    ".": "open", "-": "itself", "?": "not tried", "D": "dropped", "R": "rejected or refused",
    "M": "large messages stall",
    "N": "no way to the address", "W": "another host or service answers", "F": "fails", "S": "slow",
}  # fmt: skip
_LETTERS = {
    Fate.SILENT: "D", Fate.REJECTED: "R", Fate.REFUSED: "R", Fate.STALLED: "M", Fate.NOBODY: "N", Fate.NO_ROUTE: "N",
    Fate.FOREIGN: "W", Fate.STRANGER: "W", Fate.FAILED: "F", Fate.OPEN: ".",
}  # fmt: skip


def rows(gathered: Gathered, slow: frozenset[tuple[int, int]] = frozenset()) -> tuple[str, ...]:
    """A row a source, a letter a target, in the order of the roster. ``slow``: pairs far below the usual."""
    size = len(gathered.present)
    cells = [["."] * size for _ in range(size)]
    for number in range(size):
        if number in gathered.lost:
            cells[number] = ["?"] * size
        cells[number][number] = "-"
    for source, target in slow:
        cells[source][target] = cells[target][source] = "S"
    for link in gathered.links:
        if link.fate is not Fate.OPEN:
            cells[link.source][link.target] = _LETTERS[link.fate]
    for each in gathered.crossings:
        if each.purpose == "data":
            cells[each.source][each.target] = _LETTERS[each.attempt.fate]
    return tuple("".join(row) for row in cells)
