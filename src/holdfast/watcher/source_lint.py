"""Lints the source of a failed or hung job in a separate process, to refine the verdict.

The process (``python -m holdfast.lint.source_hints_worker``) reads a :class:`LintOrder` as JSON on
stdin and writes hints to stdout. It starts when a job becomes silent or dies, so a healthy job has
no cost. If it fails, the verdict stays as it is.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.core import settings
from holdfast.core.rank_table import RankState, SourceLine
from holdfast.host.processes.user_code import is_user_file
from holdfast.watcher.rules.source_hints import SourceHint

WORKER = "holdfast.lint.source_hints_worker"
#: From the first suspicion: with the default stall limit of 5 s, a verdict takes at most 10 s.
LIMIT_S = 4.0
#: The limit where no job waits for the verdict.
OFFLINE_LIMIT_S = 10.0


class LintOrder(msgspec.Struct, frozen=True):
    """The files in which ranks were, the start of the job (Unix s), and the time limit."""

    files: tuple[str, ...]
    before: float
    limit_s: float = LIMIT_S


class SourceLint:
    """Lints the source of a job once, in the background, within ``limit_s`` seconds."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._done = threading.Event()
        self._hints: tuple[SourceHint, ...] = ()
        self._deadline = 0.0

    @property
    def is_running(self) -> bool:
        """Return whether hints may still arrive."""
        return (
            self._process is not None
            and not self._done.is_set()
            and time.monotonic() < self._deadline
        )

    def start(self, ranks: Sequence[RankState]) -> None:
        """Start, unless it was started before or is disabled (HOLDFAST_LINT=off)."""
        if self._process is not None or settings.read_text("HOLDFAST_LINT") == "off":
            return
        started = [state.started for state in ranks if state.started]
        lines = (line.file for line in _lines(ranks) if is_user_file(line.file))
        files = tuple(file for file in dict.fromkeys(lines) if Path(file).is_file())
        if not files:
            return
        order = msgspec.json.encode(
            LintOrder(files, min(started, default=time.time()), self._limit_s)
        )
        with suppress(OSError):
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", WORKER],  # -P: import nothing of the job
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            self._deadline = time.monotonic() + self._limit_s
            threading.Thread(target=self._read, args=(self._process, order), daemon=True).start()

    def hints(self, wait_s: float = 0.0) -> tuple[SourceHint, ...]:
        """Return the hints; none if they are not complete within ``wait_s``."""
        if self._process is not None:
            self._done.wait(wait_s)
        return self._hints if self._done.is_set() else ()

    def _read(self, process: subprocess.Popen[bytes], order: bytes) -> None:
        try:
            output, _ = process.communicate(order, timeout=self._limit_s)
            self._hints = msgspec.json.decode(output, type=tuple[SourceHint, ...])
        except (subprocess.TimeoutExpired, msgspec.DecodeError, OSError, ValueError):
            process.kill()
            process.communicate()
        finally:
            self._done.set()


def _lines(ranks: Iterable[RankState]) -> Iterator[SourceLine]:
    """Yield the lines at which ranks are, made calls, raised or ended."""
    for state in ranks:
        for stack in state.stacks[-1:]:
            yield from stack.frames
        for call in (*state.pending, *state.recent):
            yield from (line for line in (call.site, call.caller) if line is not None)
        for end in (state.raised, state.ended):
            if end is not None and end.place is not None:
                yield end.place
