"""One row of the table of signals."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Row:
    """One signal: its name, its expression, and whether case counts.

    ``find`` is what to look for in the raw line where the expression needs the line without its prefix.
    """

    name: str
    expression: str
    ignore_case: bool = False
    find: str = ""

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """For taking the fields from a line that was found."""
        return re.compile(self.expression, re.IGNORECASE if self.ignore_case else 0)


def rows(*pairs: tuple[str, str]) -> tuple[Row, ...]:
    """Rows of which case counts."""
    return tuple(Row(name, expression) for name, expression in pairs)


def any_case(*pairs: tuple[str, str]) -> tuple[Row, ...]:
    """Rows of which case does not count."""
    return tuple(Row(name, expression, ignore_case=True) for name, expression in pairs)
