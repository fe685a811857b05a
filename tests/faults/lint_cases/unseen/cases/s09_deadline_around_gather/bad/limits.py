"""Time limits for code that may get stuck (parsers, sandboxes, solvers)."""
import functools
import signal
import threading


class DeadlineExceeded(Exception):
    pass


def _on_alarm(signum, frame):
    raise DeadlineExceeded()


class deadline:
    """``with deadline(2.0): ...`` or, as a decorator, ``@deadline.around("limit_s")``."""

    def __init__(self, seconds):
        self.seconds = seconds
        self._usable = threading.current_thread() is threading.main_thread()

    def __enter__(self):
        if self._usable:
            self._old = signal.signal(signal.SIGALRM, _on_alarm)
            signal.setitimer(signal.ITIMER_REAL, self.seconds)
        return self

    def __exit__(self, *exc):
        if self._usable:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._old)
        return False

    @classmethod
    def around(cls, attribute, fallback=None):
        """Guard a method; the limit is read from ``self.<attribute>``.

        ``fallback(self, *args)`` supplies the return value when time is up.
        """

        def decorate(method):
            @functools.wraps(method)
            def guarded(self, *args, **kwargs):
                try:
                    with cls(getattr(self, attribute)):  # RELATED: guard
                        return method(self, *args, **kwargs)
                except DeadlineExceeded:
                    if fallback is None:
                        raise
                    return fallback(self, *args, **kwargs)

            return guarded

        return decorate
