"""The relay process: copies pseudo-terminals of workers to their log files and to the terminal.

It is a process so that neither a busy, stopped (Ctrl-Z) nor killed launcher blocks a worker that
prints or loses its output: it ignores signals and exits after the last stream. Only the standard
library is imported, so that it starts in 50 ms. The launcher's side is :mod:`.connection`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import selectors
import signal
import socket
import struct
import sys
import termios
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from holdfast.launcher.terminal.display import Display, Stream

MAX_MESSAGE_BYTES = 4096
#: Messages of the launcher besides those that add a stream, as JSON texts.
SYNC, STOP = "sync", "stop"
#: After SYNC, output that arrives within this time is still copied before the reply.
SETTLE_S = 0.05
#: A terminal that accepts nothing (Ctrl-S) delays the reply to SYNC for at most this long.
SYNC_LIMIT_S = 2.0
#: After the launcher's death, the workers end within 30 s (watcher/orphans.py).
ORPHANS_LIMIT_S = 60.0
_TICK_S = 0.5
_READ_BYTES = 1 << 16
#: More output than this is not shown on a slow terminal; the log files are complete.
_MAX_UNSHOWN = 1 << 22
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)


def window_size(descriptor: int) -> tuple[int, int]:
    """Return rows and columns of a terminal; 24 and 80 if it has no size."""
    rows = columns = 0
    with suppress(OSError):
        packed = fcntl.ioctl(descriptor, termios.TIOCGWINSZ, b"\0" * 8)
        rows, columns, *_ = struct.unpack("HHHH", packed)
    return rows or 24, columns or 80


def set_window_size(descriptor: int, rows: int, columns: int) -> None:
    """Set the size of a pseudo-terminal."""
    with suppress(OSError):
        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


class _TerminalWriter:
    """Writes to the terminal in a thread, so that a stopped terminal blocks no worker."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._chunks, self._size = descriptor, deque[bytes](), 0
        self._ready = threading.Condition()
        self._busy = False
        threading.Thread(target=self._run, daemon=True).start()

    def write(self, data: bytes) -> None:
        """Queue bytes; drop them if the terminal is far behind."""
        with self._ready:
            if data and self._size < _MAX_UNSHOWN:
                self._chunks.append(data)
                self._size += len(data)
                self._ready.notify_all()

    def flush(self, limit_s: float) -> None:
        """Wait until everything is written, at most ``limit_s`` seconds."""
        with self._ready:
            self._ready.wait_for(lambda: not self._chunks and not self._busy, limit_s)

    def _run(self) -> None:
        while True:
            with self._ready:
                self._busy = False
                self._ready.notify_all()
                self._ready.wait_for(lambda: bool(self._chunks))
                data, self._size, self._busy = b"".join(self._chunks), 0, True
                self._chunks.clear()
            with suppress(OSError):  # the terminal was closed
                write_all(self._descriptor, data)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class _Source:
    """A pseudo-terminal's controlling side, and the log file that its output is copied to."""

    def __init__(self, master: int, log: int | None, stream: Stream, margin: int) -> None:
        self.master, self.log, self.stream, self.margin = master, log, stream, margin

    def read(self) -> bytes:
        """Return new output, empty at the end; copy it to the log."""
        try:
            data = os.read(self.master, _READ_BYTES)
        except BlockingIOError:
            raise
        except OSError:  # EIO: no process has it open any more
            data = b""
        if self.log is not None:
            try:
                write_all(self.log, data)
            except OSError as error:
                if error.errno != errno.EINTR:
                    self._close_log()  # a full disk: the terminal still shows the output
        return data

    def close(self) -> None:
        """Close both files."""
        os.close(self.master)
        self._close_log()

    def _close_log(self) -> None:
        if self.log is not None:
            os.close(self.log)
        self.log = None


class Relay:
    """Copies the output of all sources until the launcher stops it."""

    def __init__(self, control: socket.socket, terminal: int, prefix: str) -> None:
        self._control: socket.socket | None = control
        self._terminal, self._size = terminal, window_size(terminal)
        self._display = Display(prefix, self._size[1])
        self._writer = _TerminalWriter(terminal)
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._sources: list[_Source] = []
        self._reply_due: float | None = None
        self._stop = self._stopping = False
        self._deadline: float | None = None

    def run(self) -> None:
        """Copy until STOP, or until the sources end after the launcher's death."""
        while not self._stop:
            events = self._selector.select(_TICK_S if self._reply_due is None else SETTLE_S)
            for key, _ in events:
                if key.data is None:
                    self._receive()
                else:
                    self._copy(key.data)
            self._tick(idle=not events)
            if self._control is None:
                now = time.monotonic()
                self._deadline = self._deadline or now + ORPHANS_LIMIT_S
                self._stop |= not self._sources or now > self._deadline
        self._writer.flush(SYNC_LIMIT_S)

    def _receive(self) -> None:
        control = self._control
        if control is None:
            return
        try:
            data, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, 2)
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._selector.unregister(control)
            self._control = None
            return
        message: Any = json.loads(data)
        if descriptors:
            self._add(message, descriptors)
        else:
            self._reply_due = time.monotonic() + SYNC_LIMIT_S
            self._stopping = message == STOP

    def _add(self, message: dict[str, Any], descriptors: Sequence[int]) -> None:
        master, *logs = descriptors
        stream = Stream(message["rank"], message["header"].encode())
        source = _Source(master, logs[0] if logs else None, stream, message["margin"])
        os.set_blocking(master, False)
        self._resize(source)
        self._sources.append(source)
        self._selector.register(master, selectors.EVENT_READ, source)

    def _copy(self, source: _Source) -> None:
        try:
            data = source.read()
        except BlockingIOError:
            return
        if data:
            self._writer.write(self._display.write(source.stream, data, time.monotonic()))
            return
        self._selector.unregister(source.master)
        self._sources.remove(source)
        source.close()
        self._writer.write(self._display.close(source.stream))

    def _tick(self, *, idle: bool) -> None:
        now = time.monotonic()
        if (size := window_size(self._terminal)) != self._size:
            self._size, self._display.columns = size, size[1]
            for source in self._sources:
                self._resize(source)
        self._writer.write(self._display.refresh(now))
        if self._reply_due is not None and (idle or now > self._reply_due):
            self._writer.flush(max(self._reply_due - now, 0))
            self._reply_due = None
            self._stop = self._stopping
            with suppress(OSError):
                if self._control is not None:
                    self._control.send(b"done")

    def _resize(self, source: _Source) -> None:
        rows, columns = self._size
        set_window_size(source.master, rows, max(columns - source.margin, 1))


def main(prefix: str) -> None:
    """Serve the launcher, which is connected to descriptor 0; the terminal is descriptor 1."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    Relay(socket.socket(fileno=0), 1, prefix).run()
    os._exit(0)  # the writer's thread may be blocked by a stopped terminal


if __name__ == "__main__":
    main(sys.argv[1])
