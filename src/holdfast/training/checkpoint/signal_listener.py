"""Receives SIGTERM and SIGUSR1 immediately, even while the main thread is inside a collective.

Python runs signal handlers between bytecodes of the main thread, which may be blocked in C++ on a
dead peer. The handler installed here does nothing; a thread reads the signal number from the pipe
that Python's C-level handler writes to (``signal.set_wakeup_fd``).
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import threading
from collections.abc import Collection
from contextlib import suppress
from types import FrameType
from typing import Any

#: SIGTERM: Kubernetes, clouds, Slurm at the end of KillWait. SIGUSR1: Slurm's ``--signal``.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_log = logging.getLogger("holdfast.checkpoint")


class SignalListener:
    """Listens for ``signals`` until :meth:`close`; create it in the main thread.

    Existing handlers are still called with ``chain``. A second SIGINT ends the process at once; a
    process that ignores SIGINT continues to. In forked processes (data-loader workers)
    the listener is off: SIGTERM has its previous effect, and SIGUSR1 is ignored unless it had a
    handler.
    """

    def __init__(
        self, signals: Collection[signal.Signals] = SIGNALS, *, chain: bool = True
    ) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._previous: dict[signal.Signals, Any] = {}
        self._signals = frozenset(signals)
        self._chain = chain
        self._pid = os.getpid()
        self._old_fd = -1
        self._open = threading.current_thread() is threading.main_thread()
        if not self._open:
            _log.warning(
                "Checkpoint was created outside the main thread: this rank cannot receive "
                "SIGTERM and SIGUSR1"
            )
            return
        self._old_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            self._signals -= {signal.SIGINT}
        for signal_number in self._signals:
            self._previous[signal_number] = signal.signal(signal_number, self._handle)
        os.register_at_fork(after_in_child=self._disable_in_child)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        previous = self._previous.get(signal.Signals(number))
        # Python's own handler of SIGINT raises KeyboardInterrupt, which would prevent the save.
        if self._chain and callable(previous) and previous is not signal.default_int_handler:
            previous(number, frame)

    def wait(self, limit_s: float) -> signal.Signals | None:
        """Return the next signal within the limit, in seconds; None on timeout."""
        with suppress(OSError, ValueError):  # closed concurrently
            if not select.select([self._read], [], [], limit_s)[0]:
                return None
            numbers = os.read(self._read, 1024)
            if signal.SIGINT in self._signals and (count := numbers.count(signal.SIGINT)):
                restore_default_action(signal.SIGINT)
                if count > 1:
                    os.kill(os.getpid(), signal.SIGINT)
            return next(
                (signal_number for signal_number in self._signals if signal_number in numbers), None
            )
        return None

    def wake(self) -> None:
        """Make :meth:`wait` return."""
        with suppress(OSError):
            os.write(self._write, b"\0")

    def close(self) -> None:
        """Restore the previous handlers."""
        if self._open and os.getpid() == self._pid:
            self._open = False
            for signal_number, handler in self._previous.items():
                if signal.getsignal(signal_number) == self._handle:
                    signal.signal(signal_number, handler if handler is not None else signal.SIG_DFL)
            if signal.set_wakeup_fd(self._old_fd) not in (self._write, -1):
                _log.debug("the wakeup descriptor was replaced by other code")
        for descriptor in (self._read, self._write):
            with suppress(OSError):
                os.close(descriptor)

    def _disable_in_child(self) -> None:
        if not self._open:
            return
        self._open = False
        with suppress(ValueError):
            signal.set_wakeup_fd(-1)
            for signal_number, handler in self._previous.items():
                ignore = signal_number == signal.SIGUSR1 and handler in (signal.SIG_DFL, None)
                signal.signal(
                    signal_number,
                    signal.SIG_IGN
                    if ignore
                    else handler
                    if handler is not None
                    else signal.SIG_DFL,
                )


def terminate_by(number: signal.Signals) -> None:
    """Terminate the process as the signal's default action would, from any thread."""
    restore_default_action(number)
    os.kill(os.getpid(), number)


def restore_default_action(number: signal.Signals) -> None:
    """Give a signal its default action, from any thread."""
    # 0 is SIG_DFL; signal.signal works in the main thread only.
    ctypes.CDLL(None).signal(int(number), 0)
