"""One line on a terminal that says how far a long reading is; nothing where it is short, or where nobody looks."""

from __future__ import annotations

import time
from typing import Self, TextIO

from holdfast.report.evidence import size_text
from holdfast.report.text import duration, encodable, one_line

AFTER_S = 2.0
EVERY_S = 0.2
COLUMNS = 78


class _Line:
    """Writes over its own line on ``file``, after two seconds; leaves the line empty at the end."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._next = time.monotonic() + AFTER_S if file.isatty() else float("inf")
        self._shown = False

    def _due(self) -> bool:
        """It is time to say something."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next, self._shown = now + EVERY_S, True
        return True

    def _say(self, line: str) -> None:
        self._write(f"\r{encodable(line[:COLUMNS], self._file.encoding or 'ascii'):<{COLUMNS}}")

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._write("\r" + " " * COLUMNS + "\r")


class Progress(_Line):
    """Of reading, whose end is not known."""

    def tell(self, files: int, size: int, name: str) -> None:
        """So many files were found, so many bytes read, ``name`` is being read now."""
        if self._due():
            self._say(f"reading: {files:,} files, {size_text(size)}: …{one_line(name)[-30:]}")


class Advance(_Line):
    """Of work whose size is known: how much of it is done, how fast it is, and how long it still takes."""

    def __init__(self, file: TextIO) -> None:
        super().__init__(file)
        self._what, self._began = "", time.monotonic()

    def tell(self, what: str, done: int, total: int) -> None:
        """So many bytes of ``total`` are done of ``what``."""
        if what != self._what:
            self._what, self._began = what, time.monotonic()
        if self._due():
            rate = done / max(time.monotonic() - self._began, 1e-3)
            left = f", {duration((total - done) / rate)} left" if 0 < done < total else ""
            self._say(f"{what}: {size_text(done)} of {size_text(total)}, {size_text(rate)}/s{left}")
