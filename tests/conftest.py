"""What all tests share."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Heed Ctrl-C: who starts the tests in a shell's background has it ignored, by every child as well."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
