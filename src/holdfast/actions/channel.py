"""The agent's end of the line to the watcher, a process of its own: one JSON object a line, both ways.

Threads write and read, so that a watcher that is slow, stuck or dead never makes the agent wait.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

WATCHER = "holdfast.actions.watch"
#: How long the watcher may take to leave when it is told to.
LEAVE_LIMIT_S = 2.0


class Channel:
    """Starts the watcher. ``log`` takes what it says on stderr."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self._environment, self._log = environment, log
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", WATCHER],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=dict(environment),
                start_new_session=True,  # Ctrl-C is for the agent, which tells the watcher when to go
            )  # fmt: skip
        self._orders: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._open = True
        for work in (self._write, self._read):
            threading.Thread(target=work, name=f"holdfast {work.__name__[1:]}", daemon=True).start()

    @property
    def pid(self) -> int:
        """The watcher's process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the watcher can still answer."""
        return self._open and self._process.poll() is None

    @property
    def status(self) -> int | None:
        """The watcher's exit status, None while it lives."""
        return self._process.poll()

    def again(self) -> Channel:
        """Another watcher in the place of this one, which is gone; it knows nothing yet."""
        self.kill()
        return Channel(self._environment, self._log)

    def send(self, kind: str, **what: Any) -> None:
        """Send an order; does nothing once the watcher is gone."""
        if self._open:
            self._orders.put(msgspec.json.encode({"kind": kind, **what}, order=None) + b"\n")

    def answers(self) -> Iterator[dict[str, Any]]:
        """What arrived since the last call."""
        with suppress(queue.Empty):
            while True:
                yield self._answers.get_nowait()

    def close(self) -> None:
        """Hang up, on which the watcher goes, and see to it that it does. May be called more than once."""
        self._orders.put(None)
        try:
            self._process.wait(LEAVE_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the watcher and what it started, at once."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVE_LIMIT_S)

    def _write(self) -> None:
        assert self._process.stdin is not None  # noqa: S101 - it was opened above
        with suppress(OSError, ValueError), self._process.stdin as pipe:
            while (line := self._orders.get()) is not None:
                pipe.write(line)
                pipe.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - it was opened above
        with suppress(OSError, ValueError), self._process.stdout as pipe:
            for line in pipe:
                with suppress(msgspec.DecodeError):
                    answer = msgspec.json.decode(line)
                    if isinstance(answer, dict):
                        self._answers.put(answer)
        self._open = False
