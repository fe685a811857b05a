"""Ends the workers of an agent that was killed (SIGKILL, the OOM killer): they must not outlive it.

The kernel has already sent them SIGTERM (PR_SET_PDEATHSIG, set by ``recorder/bootstrap.py``), so
that they can save a checkpoint. Workers that do not exit, and their child processes, get SIGKILL;
their trace files are kept as evidence.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from holdfast.watcher import shared_memory_cleanup
from holdfast.watcher.run_folder import keep_traces, own_folder

#: Time for workers to save and exit after SIGTERM; torchrun grants the same.
GRACE_S = 30.0


class WorkerTree:
    """The workers of one generation and their children, identified by pid and start time."""

    def __init__(self, workers: Sequence[int]) -> None:
        self._workers = [process for pid in workers if (process := _process(pid)) is not None]
        self._children: dict[int, psutil.Process] = {}

    def remember_children(self, pids: Collection[int]) -> None:
        """Store the living children: after the workers exit, nothing links to them."""
        processes = {pid: self._children.get(pid) or _process(pid) for pid in pids}
        self._children = {pid: process for pid, process in processes.items() if process is not None}

    def end(self) -> None:
        """Send SIGTERM, wait, send SIGKILL; processes that clean up after others come last."""
        for worker in self._workers:
            with suppress(psutil.Error):
                worker.terminate()
        psutil.wait_procs(self._workers, timeout=GRACE_S)
        cleaners = [
            process
            for process in self._children.values()
            if shared_memory_cleanup.can_clean_up(process.pid)
        ]
        for process in (*self._workers, *self._children.values()):
            if process not in cleaners:
                _kill(process)
        _, alive = psutil.wait_procs(cleaners, timeout=shared_memory_cleanup.CLEANERS_LIMIT_S)
        for process in alive:
            _kill(process)


def end_orphans(workers: WorkerTree, traces: Path, run: Path, rendezvous: tuple[str, int]) -> None:
    """End the workers, and move their trace files to ``orphaned`` in the run folder.

    ``rendezvous``: address and port of the job.
    """
    with suppress(OSError):
        own_folder(traces)  # else another run that starts now removes it as stale
    workers.end()
    shared_memory_cleanup.remove_shared_memory(*rendezvous)
    keep_traces(traces, run / "orphaned")
    shutil.rmtree(traces, ignore_errors=True)


def _process(pid: int) -> psutil.Process | None:
    with suppress(psutil.Error):
        return psutil.Process(pid)
    return None


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.Error):
        process.kill()
