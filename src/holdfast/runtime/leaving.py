"""Ends this process without taking Python apart, which threads of torch's C++ do not survive.

A thread that comes out of C++ while Python ends is ended by pthread_exit before Python 3.14; C++ answers with
std::terminate, and the process is aborted: "terminate called without an active exception", status -6, though all was
done. Measured with torch 2.13.0 on Python 3.11: a thread in ``TCPStore.check`` aborts 40 ends of 40. For
the launcher, whose end is ours; a rank's end is its script's, and what else runs there is not known.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn


def leave(status: int) -> NoReturn:
    """End the process with this status, after threads that are to be waited for, exit handlers and what is buffered."""
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - what os._exit would leave out: pools are told
    atexit._run_exitfuncs()  # noqa: SLF001 - and this
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, gone, or none at all
            stream.flush()
    os._exit(status)
