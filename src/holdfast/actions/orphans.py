"""What the watcher does when the agent was killed (SIGKILL, the out-of-memory killer): workers must not outlive it.

The kernel has sent them SIGTERM by then (PR_SET_PDEATHSIG, asked for by ``runtime/bootstrap.py``), so that they can
save; those that do not end, and what they started, get SIGKILL, and their boxes are kept as evidence.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from holdfast.actions.run_folder import keep_boxes, take_over
from holdfast.facts.children import children
from holdfast.runtime import leftovers

#: How long workers may take to save and end, as long as torchrun gives them.
PATIENCE_S = 30.0
LOOK_EVERY_S = 2.0


class Family:
    """The workers of one generation, known by process id and start time, so that no stranger is ever ended."""

    def __init__(self, workers: Sequence[int]) -> None:
        self._workers = [found for pid in workers if (found := _process(pid)) is not None]
        self._kin: dict[int, psutil.Process] = {}
        self._looked_at = 0.0

    def look(self) -> None:
        """Now and then remember what the workers started: once they are gone, nothing leads to it any more."""
        if time.monotonic() < self._looked_at + LOOK_EVERY_S:
            return
        self._looked_at = time.monotonic()
        now = {child.pid for worker in self._workers for child in children(worker.pid) if child.alive}
        found = {pid: self._kin.get(pid) or _process(pid) for pid in now}
        self._kin = {pid: process for pid, process in found.items() if process is not None}

    def end(self) -> None:
        """SIGTERM, patience, SIGKILL; also for what they started, those last that clean up after them."""
        for worker in self._workers:
            with suppress(psutil.Error):
                worker.terminate()
        psutil.wait_procs(self._workers, timeout=PATIENCE_S)
        cleaners = [process for process in self._kin.values() if leftovers.cleans_up(process.pid)]
        for process in (*self._workers, *self._kin.values()):
            with suppress(psutil.Error):
                if process not in cleaners:
                    process.kill()
        for process in psutil.wait_procs(cleaners, timeout=leftovers.CLEANERS_LIMIT_S)[1]:
            with suppress(psutil.Error):
                process.kill()


def clear_up(family: Family, boxes: Path, run: Path, met: tuple[str, int]) -> None:
    """End what the agent left, and move its boxes from shared memory to ``orphaned`` in the run's folder.

    The workers ``met`` at this address and port.
    """
    with suppress(OSError):
        take_over(boxes)  # another run that starts meanwhile would take them for leftovers
    family.end()
    leftovers.remove(*met)
    keep_boxes(boxes, run / "orphaned")
    shutil.rmtree(boxes, ignore_errors=True)


def _process(pid: int) -> psutil.Process | None:
    with suppress(psutil.Error):
        return psutil.Process(pid)
    return None
