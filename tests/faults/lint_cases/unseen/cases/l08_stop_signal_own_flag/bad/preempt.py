"""Cooperative shutdown for scheduled jobs.

Batch systems announce the end of an allocation with a signal and leave a grace period.
"""
import logging
import os
import signal
import threading

logger = logging.getLogger(__name__)

DEFAULT_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopWatcher:
    """Context manager that turns termination signals into a flag the loop can poll."""

    def __init__(self, signals=DEFAULT_SIGNALS):
        self.signals = tuple(signals)
        self._event = threading.Event()
        self._previous = {}
        self.received = None

    def _handle(self, signum, _frame):
        self.received = signal.Signals(signum).name
        self._event.set()

    def __enter__(self):
        for sig in self.signals:
            self._previous[sig] = signal.signal(sig, self._handle)
        return self

    def __exit__(self, *exc):
        for sig, handler in self._previous.items():
            signal.signal(sig, handler)
        return False

    @property
    def pending(self) -> bool:
        return self._event.is_set()


class Drill:
    """Rehearses a preemption: ``PREEMPT_DRILL=<process>:<step>`` signals that process."""

    def __init__(self, process_index, spec=None):
        spec = spec if spec is not None else os.environ.get("PREEMPT_DRILL", "1:4")
        target, _, step = spec.partition(":")
        self.step = int(step) if step and int(target) == process_index else None

    def tick(self, step):
        if step == self.step:
            logger.warning("drill: raising SIGUSR1 at step %d", step)
            os.kill(os.getpid(), signal.SIGUSR1)
