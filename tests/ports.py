"""Free ports for tests, below those that the system gives to connections, so that nobody gets one in between."""

from __future__ import annotations

import os
import socket
import time

_FIRST, _EACH = 20_000, 1_500


def free_port() -> int:
    """A port that nobody has, from a range of this process of pytest's own (pytest-xdist numbers them)."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8
    at = time.monotonic_ns() // 1000
    for step in range(_EACH):
        port = _FIRST + worker * _EACH + (at + step) % _EACH
        with socket.socket() as tried:
            try:
                tried.bind(("", port))
            except OSError:
                continue
            return port
    message = "no free port"
    raise AssertionError(message)
