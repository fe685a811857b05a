"""A progress line on the terminal for operations longer than two seconds."""

from __future__ import annotations

import threading
import time
from typing import Self, TextIO

from holdfast.cli.general_options import verbosity
from holdfast.core.text import encodable, format_duration, one_line, pluralize
from holdfast.report.evidence_summary import size_text

AFTER_S = 2.0
EVERY_S = 0.2
COLUMNS = 78


class _StatusLine:
    """Overwrites one line of ``file`` after two seconds; clears it at the end."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._next = (
            time.monotonic() + AFTER_S if file.isatty() and verbosity() >= 0 else float("inf")
        )
        self._shown = False

    def _due(self) -> bool:
        """Return whether the line should be updated."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next, self._shown = now + EVERY_S, True
        return True

    def _show(self, line: str) -> None:
        self._write(f"\r{encodable(line[:COLUMNS], self._file.encoding or 'ascii'):<{COLUMNS}}")

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._write("\r" + " " * COLUMNS + "\r")


class Progress(_StatusLine):
    """Progress of reading with unknown total size."""

    def tell(self, files: int, size: int, name: str) -> None:
        """Update: number of files, bytes read so far, and the current file."""
        if self._due():
            self._show(f"reading: {files:,} files, {size_text(size)}: …{one_line(name)[-30:]}")


class ElapsedProgress(_StatusLine):
    """Progress of work that reports none: a thread shows the seconds since its start."""

    def __init__(self, file: TextIO, what: str) -> None:
        super().__init__(file)
        self._what, self._began = what, time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._update, daemon=True)

    def _update(self) -> None:
        while not self._ended.wait(EVERY_S):
            if self._due():
                self._show(f"{self._what}: {format_duration(time.monotonic() - self._began)}")

    def __enter__(self) -> Self:
        if self._next < float("inf"):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        super().__exit__()


class RungProgress(_StatusLine):
    """Progress of a job that is measured."""

    def tell(self, processes: int, steps: int, elapsed_s: float) -> None:
        """Update: number of processes, steps so far, and seconds since the start."""
        if self._due():
            count = pluralize(processes, "process")
            self._show(f"{count}: {pluralize(steps, 'step')} in {format_duration(elapsed_s)}")


class AnalysisProgress(Progress):
    """Progress of reading files, then of analyzing them, whose duration is unknown."""

    def __init__(self, file: TextIO) -> None:
        super().__init__(file)
        self._began = time.monotonic()

    def tell_share(self, files: int, done: int, total: int) -> None:
        """Update: ``done`` of the ``total`` cost of analyzing these files."""
        if self._due():
            share = f", {done / total:.0%}" if done else ""
            elapsed = format_duration(time.monotonic() - self._began)
            self._show(f"analyzing {pluralize(files, 'file')}: {elapsed}{share}")


class Advance(_StatusLine):
    """Progress of work with known size: share, rate and remaining time."""

    def __init__(self, file: TextIO) -> None:
        super().__init__(file)
        self._what, self._began = "", time.monotonic()

    def tell(self, what: str, done: int, total: int) -> None:
        """Update: ``done`` of ``total`` bytes of ``what``."""
        if what != self._what:
            self._what, self._began = what, time.monotonic()
        if self._due():
            rate = done / max(time.monotonic() - self._began, 1e-3)
            left = f", {format_duration((total - done) / rate)} left" if 0 < done < total else ""
            self._show(
                f"{what}: {size_text(done)} of {size_text(total)}, {size_text(rate)}/s{left}"
            )
