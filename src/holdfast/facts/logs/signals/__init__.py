"""The table of what logs can say: one row a signal, with the expression that finds it.

An expression has no look-around and no back-reference, so that any engine can search for all of them at once; its named
groups become the signal's fields (digits become numbers). A row says what was printed. What that means stands in
``rules/logs``; rows whose name begins with ``noise-`` look grave and mean nothing.
"""

from __future__ import annotations

from holdfast.facts.logs.signals.machine import DEVICES, MEMORY, NETWORK
from holdfast.facts.logs.signals.processes import ANCHORED, NOISE, PROCESSES
from holdfast.facts.logs.signals.row import Row
from holdfast.facts.logs.signals.training import DATA, MODEL, NCCL, WATCHDOG

__all__ = ["ROWS", "Row", "fields"]

ROWS: tuple[Row, ...] = (*DEVICES, *MEMORY, *NETWORK, *NCCL, *WATCHDOG, *MODEL, *DATA, *PROCESSES, *ANCHORED, *NOISE)


#: Longer numbers are nobody's: the longest that torch prints is -1 as 64 bits without a sign.
_MOST_DIGITS = 20


def fields(row: Row, text: str) -> dict[str, str | int | float] | None:
    """The fields of ``row`` in ``text``; None where the row does not stand in it, or with a number beyond belief."""
    found = row.compiled.search(text)
    if found is None:
        return None
    said = {name: value for name, value in found.groupdict().items() if value is not None}
    if any(len(value) > _MOST_DIGITS and value.lstrip("-").isdigit() for value in said.values()):
        return None
    return {name: _number(value) for name, value in said.items()}


def _number(value: str) -> str | int | float:
    if value.isascii() and value.removeprefix("-").isdigit():
        return int(value)
    try:
        return float(value) if value.replace(".", "", 1).isdigit() and len(value) < _MOST_DIGITS else value
    except ValueError:
        return value
