"""Free ports for tests, below the ephemeral range, so that no connection takes one in between."""

from __future__ import annotations

import os
import socket
import time

_FIRST, _PORTS_PER_WORKER = 20_000, 1_500


def free_port(first: int = _FIRST, count: int = _PORTS_PER_WORKER) -> int:
    """Return a free port from this pytest-xdist worker's own ``count`` ports from ``first``."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8
    at = time.monotonic_ns() // 1000
    for step in range(count):
        port = first + worker * count + (at + step) % count
        with socket.socket() as candidate:
            try:
                candidate.bind(("", port))
            except OSError:
                continue
            return port
    message = "no free port"
    raise AssertionError(message)
