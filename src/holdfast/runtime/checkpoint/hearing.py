"""Hears SIGTERM and SIGUSR1 at once, also while the main thread is inside of a collective.

Python runs a signal's handler between two bytecodes of the main thread, which may wait in C++ for a peer that is dead.
The handler here does nothing; a thread reads the number of the signal from the pipe into which Python's own C handler
writes it (``signal.set_wakeup_fd``), whatever the main thread does.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from types import FrameType
from typing import Any

#: Schedulers warn with the first (Kubernetes, clouds, Slurm at the end of KillWait) or the second (``--signal``).
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_log = logging.getLogger("holdfast.checkpoint")


class Ears:
    """Listens for ``signals`` from when it is made until :meth:`close`; to be made in the main thread.

    A handler of the user's own is called as before. In processes that fork from this one (data-loader workers) nothing
    is heard: there SIGTERM is what it was before, and SIGUSR1, of which they know nothing, is ignored.
    """

    def __init__(self, signals: Collection[signal.Signals] = SIGNALS) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._before: dict[signal.Signals, Any] = {}
        self._signals = frozenset(signals)
        self._pid = os.getpid()
        self._old_fd = -1
        self._open = threading.current_thread() is threading.main_thread()
        if not self._open:
            _log.warning(
                "a checkpoint was made outside of the main thread: this rank does not hear SIGTERM and SIGUSR1"
            )
            return
        self._old_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for each in self._signals:
            self._before[each] = signal.signal(each, self._handle)
        os.register_at_fork(after_in_child=self._deaf)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(signal.Signals(number))
        if callable(before):
            before(number, frame)

    def wait(self, limit_s: float) -> signal.Signals | None:
        """The next signal that comes within the limit; None where none does."""
        with suppress(OSError, ValueError):  # closed meanwhile
            if not select.select([self._read], [], [], limit_s)[0]:
                return None
            numbers = os.read(self._read, 1024)
            return next((each for each in self._signals if each in numbers), None)
        return None

    def wake(self) -> None:
        """Have :meth:`wait` return."""
        with suppress(OSError):
            os.write(self._write, b"\0")

    def close(self) -> None:
        """Put back what was there before."""
        if self._open and os.getpid() == self._pid:
            self._open = False
            for each, handler in self._before.items():
                if signal.getsignal(each) == self._handle:
                    signal.signal(each, handler if handler is not None else signal.SIG_DFL)
            if signal.set_wakeup_fd(self._old_fd) not in (self._write, -1):
                _log.debug("somebody else had taken the wakeup descriptor")
        for descriptor in (self._read, self._write):
            with suppress(OSError):
                os.close(descriptor)

    def _deaf(self) -> None:
        if not self._open:
            return
        self._open = False
        with suppress(ValueError):
            signal.set_wakeup_fd(-1)
            for each, handler in self._before.items():
                quiet = each == signal.SIGUSR1 and handler in (signal.SIG_DFL, None)
                signal.signal(each, signal.SIG_IGN if quiet else handler if handler is not None else signal.SIG_DFL)


def end_by(number: signal.Signals, say: Callable[[], None] = lambda: None) -> None:
    """End this process as the signal would have done without a handler, from any thread and at once."""
    say()
    ctypes.CDLL(None).signal(int(number), 0)  # SIG_DFL; Python's own call is for the main thread alone
    os.kill(os.getpid(), number)
