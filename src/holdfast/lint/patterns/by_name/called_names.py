"""The names that a module calls, and where, by its text alone."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection

from holdfast.lint.sources.modules import Module

_CALLED = re.compile(r"\b(\w++)(\s*+)\(")


class CalledNames:
    """The names before an opening parenthesis in a module, with their lines, in order.

    ``names`` are those directly before it. Definitions and comments count, too.
    """

    def __init__(self, module: Module) -> None:
        self._lines: list[int] = []
        self._names: list[str] = []
        self._places: dict[str, list[int]] = {}
        text, line, start = module.text, 1, 0
        for found in _CALLED.finditer(text):
            name, space = found.groups()
            line += text.count("\n", start, found.start())
            start = found.start()
            self._lines.append(line)
            self._names.append(name)
            if not space:
                self._places.setdefault(name, []).append(line)

    @property
    def names(self) -> Collection[str]:
        """Return the names."""
        return self._places.keys()

    def lines_of(self, name: str) -> list[int]:
        """Return the lines on which a name is called."""
        return self._places.get(name, [])

    def within(self, first: int, last: int) -> set[str]:
        """Return the names called on these lines."""
        start = bisect_left(self._lines, first)
        return set(self._names[start : bisect_right(self._lines, last, start)])
