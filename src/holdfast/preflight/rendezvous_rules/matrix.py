"""The reachability of every host from every other as a matrix of letters."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.preflight.rendezvous import ConnectOutcome, Observations

#: Letter -> meaning; the first three are not faults.
LEGEND: Mapping[str, str] = {
    ".": "open", "-": "itself", "?": "not tried", "D": "dropped", "R": "rejected or refused",
    "M": "large messages stall",
    "N": "no route or host", "W": "another host or service answers", "F": "fails", "S": "slow",
}  # fmt: skip
_LETTERS = {
    ConnectOutcome.TIMED_OUT: "D",
    ConnectOutcome.REJECTED: "R",
    ConnectOutcome.REFUSED: "R",
    ConnectOutcome.STALLED: "M",
    ConnectOutcome.NO_HOST: "N",
    ConnectOutcome.NO_ROUTE: "N",
    ConnectOutcome.FOREIGN_SERVICE: "W",
    ConnectOutcome.INCOMPATIBLE: "W",
    ConnectOutcome.FAILED: "F",
    ConnectOutcome.OPEN: ".",
}


def matrix_rows(
    observed: Observations, slow: frozenset[tuple[int, int]] = frozenset()
) -> tuple[str, ...]:
    """Return one row per source, one letter per target, in roster order; ``slow``: slow pairs."""
    size = len(observed.participants)
    cells = [["."] * size for _ in range(size)]
    for number in range(size):
        if number in observed.lost:
            cells[number] = ["?"] * size
        cells[number][number] = "-"
    for source, target in slow:
        cells[source][target] = cells[target][source] = "S"
    for link in observed.links:
        if link.outcome is not ConnectOutcome.OPEN:
            cells[link.source][link.target] = _LETTERS[link.outcome]
    for result in observed.failed_probes:
        if result.purpose == "data":
            cells[result.source][result.target] = _LETTERS[result.attempt.outcome]
    return tuple("".join(row) for row in cells)
