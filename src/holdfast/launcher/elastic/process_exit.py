"""Exit the launcher without finalizing the interpreter, which torch's C++ threads prevent.

Before Python 3.14, a thread that returns from C++ during finalization is ended by pthread_exit;
C++ calls std::terminate, and the process aborts: "terminate called without an active exception",
status -6. Measured with torch 2.13.0 on Python 3.11: a thread in ``TCPStore.check`` aborts 40 of 40
exits.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn


def exit_without_teardown(status: int) -> NoReturn:
    """Join non-daemon threads, run exit handlers, flush the output, and exit with ``status``."""
    # os._exit would skip both
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
    atexit._run_exitfuncs()  # noqa: SLF001
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or None
            stream.flush()
    os._exit(status)
