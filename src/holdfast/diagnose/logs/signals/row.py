"""One row of the scan table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from holdfast.core.log_signals import LogSignal


@dataclass(frozen=True)
class ScanRow:
    """One pattern of a signal.

    ``find`` is the pattern for the raw line if ``expression`` needs the line without its prefix.
    """

    name: str
    expression: str
    ignore_case: bool = False
    find: str = ""

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The compiled expression."""
        return re.compile(self.expression, re.IGNORECASE if self.ignore_case else 0)


def rows(*entries: tuple[str, ...], ignore_case: bool = False) -> tuple[ScanRow, ...]:
    """Return one row per entry; an entry is a name and alternative expressions."""
    return tuple(
        ScanRow(name, "|".join(expressions), ignore_case) for name, *expressions in entries
    )


def rows_of_signal(signal: LogSignal) -> tuple[ScanRow, ...]:
    """Return the rows of a signal that a cause declares."""
    return tuple(
        ScanRow(signal.name, pattern)
        if isinstance(pattern, str)
        else ScanRow(signal.name, pattern.expression, find=pattern.find)
        for pattern in signal.patterns
    )
