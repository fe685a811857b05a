"""Entry of the watcher process, ``python -m holdfast.watcher``: starts after the workers.

The watcher's imports take 0.3 s of CPU time. On a host with few cores, they would delay the first
line of the script; so they wait for the agent's first request, sent once the workers run.
"""

from __future__ import annotations

import runpy
import select
import sys
import time

#: Within this time the workers' interpreters reach the script.
_WORKER_START_S = 0.3


def main() -> None:
    """Wait for the first request, or for the end of the agent, and watch."""
    select.select([sys.stdin], [], [])
    time.sleep(_WORKER_START_S)
    runpy.run_module("holdfast.watcher.process", run_name="__main__")


if __name__ == "__main__":
    main()
