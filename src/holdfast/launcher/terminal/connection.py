"""The launcher's side of the relay: pseudo-terminals for workers, and its own messages.

Workers get a pseudo-terminal for each of stdout and stderr that is a terminal here, so that
colours, progress bars and debuggers work as under torchrun; :mod:`.relay` copies it to the log file
and the screen.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from io import TextIOWrapper
from pathlib import Path
from string import Template
from typing import Any, Self, TextIO

import holdfast
from holdfast.launcher.terminal import relay

#: The standard streams that workers can print to.
STREAMS: Mapping[str, int] = {"stdout": 1, "stderr": 2}
LINE_PREFIX = "[rank${rank}]: "


class Prefix(StrEnum):
    """Which printed lines name their rank."""

    AUTO = "auto"  #: on a terminal once a second rank prints, else all
    ALWAYS = "always"
    NEVER = "never"


_START = (  # without site-packages, which take longer to set up
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from holdfast.launcher.terminal import relay; relay.main(sys.argv[2])"
)
_SYNC_S = relay.SYNC_LIMIT_S + 1.0


@dataclass(frozen=True)
class _SentStream:
    """What the relay was sent, for the thread that replaces it."""

    message: bytes
    descriptors: tuple[int, ...]


class TerminalRelay:
    """The relay of one launcher, inside a with-block.

    There, ``sys.stdout`` and ``sys.stderr`` of the launcher go through the relay, too: it is the
    only writer, and inserts messages above a progress bar. If the relay process is killed, a thread
    continues its work.

    Args:
        prefix: "auto", "always" or "never".
        template: of the prefix, with torchrun's placeholders.
        shown: the local ranks whose output is shown; None: all.
    """

    def __init__(self, prefix: str, template: str, shown: frozenset[int] | None) -> None:
        self._prefix, self._template, self._shown = prefix, template, shown
        self.terminal, self.streams = terminal_streams()
        self._sources: list[_SentStream] = []
        self._lock = threading.Lock()
        self._closing = False
        self._own: dict[str, TextIO] = {}
        self._mode: list[Any] | None = None

    @property
    def is_usable(self) -> bool:
        """Whether this process has a terminal, and the system has pseudo-terminals."""
        if not self.streams:
            return False
        try:
            for descriptor in os.openpty():
                os.close(descriptor)
        except OSError:
            return False
        return True

    def __enter__(self) -> Self:
        """Start the relay and send the launcher's own output through it."""
        self._start_process()
        self._mode = _input_mode()
        for name in self.streams:
            self._own[name] = getattr(sys, name)
            slave = self._open_stream({"rank": None, "header": "", "margin": 0}, None)
            setattr(sys, name, slave)
        threading.Thread(target=self._take_over, name="holdfast relay", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the launcher's output after everything was shown, and end the relay."""
        for name, original in self._own.items():
            with suppress(OSError, ValueError):
                getattr(sys, name).close()
            setattr(sys, name, original)
        self._closing = True
        self._request(relay.STOP)
        try:
            self._process.wait(_SYNC_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._control.close()
        self._forget()
        self.restore_input()

    def restore_input(self) -> None:
        """Restore what a debugger in a killed worker changed, if this is the foreground job."""
        with suppress(termios.error):
            if self._mode is not None and not _in_background():
                termios.tcsetattr(0, termios.TCSADRAIN, self._mode)

    def shows(self, local_rank: int) -> bool:
        """Return whether the output of a local rank is shown."""
        return self._shown is None or local_rank in self._shown

    def connect(
        self, name: str, local_rank: int, environment: Mapping[str, str], log: TextIOWrapper
    ) -> TextIOWrapper:
        """Return the pseudo-terminal for stream ``name`` of a worker, copied to ``log``.

        Returns ``log`` itself for a stream that is not shown, or without free pseudo-terminals.
        """
        if name not in self.streams or not self.shows(local_rank):
            return log
        header = Template(self._template).safe_substitute(
            rank=environment["RANK"], local_rank=local_rank, role_name=environment["ROLE_NAME"]
        )
        ranks = int(environment["LOCAL_WORLD_SIZE"]) if self._shown is None else len(self._shown)
        prefixed = self._prefix == "always" or (self._prefix == "auto" and ranks > 1)
        try:
            terminal = self._open_stream(
                {
                    "rank": int(environment["RANK"]),
                    "header": "" if self._prefix == "never" else header,
                    "margin": len(header) if prefixed else 0,
                },
                log,
            )
        except OSError:
            return log
        log.close()
        return terminal

    def finish_generation(self) -> None:
        """Wait until the output of workers that ended, and has been closed here, is shown."""
        self._request(relay.SYNC)
        self._forget(keep=len(self._own))

    def _open_stream(self, message: dict[str, Any], log: TextIO | None) -> TextIOWrapper:
        """Create a pseudo-terminal, and have the relay copy it. Raises OSError."""
        master, slave = os.openpty()
        mode = termios.tcgetattr(slave)
        mode[1] &= ~termios.OPOST  # the user's terminal converts line breaks, the log has none
        mode[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, mode)
        descriptors = (master,) if log is None else (master, os.dup(log.fileno()))
        source = _SentStream(json.dumps(message).encode(), descriptors)
        with self._lock:
            self._sources.append(source)
            self._send(source)
        return os.fdopen(slave, "w", buffering=1, encoding="utf-8", errors="backslashreplace")

    def _connect(self) -> socket.socket:
        """Open a new connection; return the relay's end."""
        self._control, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_SYNC_S)
        return remote

    def _start_process(self) -> None:
        with self._connect() as remote:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-c", _START, _source_folder(), self._prefix],
                stdin=remote.fileno(),
                stdout=self.terminal,
                start_new_session=True,  # Ctrl-C and Ctrl-Z go to the launcher only
            )

    def _send(self, source: _SentStream) -> None:
        with suppress(OSError):  # the relay was killed: the next one gets it
            socket.send_fds(self._control, [source.message], source.descriptors)

    def _request(self, message: str) -> None:
        """Send SYNC or STOP and wait for the reply."""
        with suppress(OSError):
            self._control.send(json.dumps(message).encode())
            self._control.recv(relay.MAX_MESSAGE_BYTES)

    def _take_over(self) -> None:
        """Do the work of the relay process in this thread, should it be killed."""
        self._process.wait()
        with self._lock:
            if self._closing:
                return
            remote = self._connect()
            for source in self._sources:
                self._send(source)
        relay.Relay(remote, self.terminal, self._prefix).run()

    def _forget(self, keep: int = 0) -> None:
        """Close the copies of the sources, except the first ``keep``."""
        with self._lock:
            ended, self._sources = self._sources[keep:], self._sources[:keep]
        for source in ended:
            for descriptor in source.descriptors:
                os.close(descriptor)


def terminal_streams() -> tuple[int, tuple[str, ...]]:
    """Return the terminal's descriptor and the streams that are open on it; -1 and () if none."""
    terminals = {
        name: os.fstat(number).st_rdev for name, number in STREAMS.items() if _is_terminal(number)
    }
    if not terminals:
        return -1, ()
    first = next(iter(terminals))
    same = tuple(name for name, device in terminals.items() if device == terminals[first])
    return STREAMS[first], same


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def _input_mode() -> list[Any] | None:
    """Return the settings of the terminal that this process reads, None if it reads none."""
    try:
        return termios.tcgetattr(0)
    except termios.error:
        return None


def _in_background() -> bool:
    try:
        return os.tcgetpgrp(0) != os.getpgrp()
    except OSError:  # another session's terminal has no background jobs of this one
        return False


def _source_folder() -> str:
    return str(Path(holdfast.__file__).parent.parent)
