"""One line on a terminal that says how far a long reading is; nothing where it is short, or where nobody looks."""

from __future__ import annotations

import time
from typing import Self, TextIO

from holdfast.report.evidence import size_text
from holdfast.report.text import encodable, one_line

AFTER_S = 2.0
EVERY_S = 0.2
COLUMNS = 78


class Progress:
    """Writes over its own line on ``file``, after two seconds; leaves the line empty at the end."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._next = time.monotonic() + AFTER_S if file.isatty() else float("inf")
        self._shown = False

    def tell(self, files: int, size: int, name: str) -> None:
        """So many files were found, so many bytes read, ``name`` is being read now."""
        now = time.monotonic()
        if now >= self._next:
            self._next, self._shown = now + EVERY_S, True
            line = f"reading: {files:,} files, {size_text(size)}: …{one_line(name)[-30:]}"[:COLUMNS]
            self._write(f"\r{encodable(line, self._file.encoding or 'ascii'):<{COLUMNS}}")

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._write("\r" + " " * COLUMNS + "\r")
