"""Call functions when the script ends, while threads still run."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable


def call_at_script_end(call: Callable[[], object]) -> None:
    """Call ``call`` when the script ends; atexit is too late, as threads can then start no work."""
    # Private, but in Python 3.9 to 3.14; concurrent.futures uses it.
    getattr(threading, "_register_atexit", atexit.register)(call)
