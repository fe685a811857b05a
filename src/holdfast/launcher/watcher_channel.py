"""The agent's side of the pipe to the watcher process: one message per line in both directions.

Threads read and write, so that a slow, hung or dead watcher never blocks the agent. The messages
are those of :mod:`holdfast.watcher.agent_messages`.
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

from holdfast.watcher.agent_messages import (
    Reply,
    Request,
    UndecodableMessage,
    decode_reply,
    encode_message,
)

WATCHER = "holdfast.watcher"
#: Maximum time for the watcher to exit after the pipe closes.
EXIT_TIMEOUT_S = 2.0
#: The job has priority, also while the watcher starts.
_NICENESS = 5


class WatcherChannel:
    """Starts the watcher; its stderr goes to the file ``log``."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self._environment, self._log = environment, log
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", WATCHER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=dict(environment),
                start_new_session=True,  # Ctrl-C goes to the agent only
            )
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self._process.pid, _NICENESS)
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._open = True
        for work in (self._write, self._read):
            threading.Thread(target=work, name=f"holdfast {work.__name__[1:]}", daemon=True).start()

    @property
    def pid(self) -> int:
        """The watcher's process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the watcher can still reply."""
        return self._open and self._process.poll() is None

    @property
    def status(self) -> int | None:
        """The watcher's exit status, None while it runs."""
        return self._process.poll()

    def restart(self) -> WatcherChannel:
        """Start a new watcher in place of this one; it has no state yet."""
        self.kill()
        return WatcherChannel(self._environment, self._log)

    def send(self, request: Request) -> None:
        """Send a request; does nothing once the watcher has exited."""
        if self._open:
            self._requests.put(encode_message(request))

    def replies(self) -> Iterator[Reply]:
        """Yield the replies that arrived since the last call."""
        with suppress(queue.Empty):
            while True:
                yield self._replies.get_nowait()

    def close(self) -> None:
        """Close the pipe, which ends the watcher; kill it if it does not exit. Idempotent."""
        self._requests.put(None)
        try:
            self._process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill the watcher and its child processes."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_TIMEOUT_S)

    def _write(self) -> None:
        assert self._process.stdin is not None  # noqa: S101 - opened above
        with suppress(OSError, ValueError), self._process.stdin as pipe:
            while (line := self._requests.get()) is not None:
                pipe.write(line)
                pipe.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - opened above
        with suppress(OSError, ValueError), self._process.stdout as pipe:
            for line in pipe:
                try:
                    self._replies.put(decode_reply(line))
                except UndecodableMessage as error:
                    self._log_line(f"holdfast agent: {error}")
        self._open = False

    def _log_line(self, text: str) -> None:
        with suppress(OSError), self._log.open("a") as log:
            log.write(f"{text}\n")
