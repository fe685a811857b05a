"""Terminate workers and all processes that they started.

Each worker leads its own session, so its data-loader processes are found after it has exited;
processes that left the session are found because this process adopts orphans. A frozen process
(SIGSTOP, debugger) never handles SIGTERM, so it gets SIGKILL at once.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.core import settings
from holdfast.watcher import shared_memory_cleanup

#: Wait for processes after SIGKILL; only uninterruptible I/O takes longer.
KILL_TIMEOUT_S = 5.0
_POLL_S = 0.02
_FROZEN_STATES = "tT"
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


class PopenLike(Protocol):
    """The process of a worker; the subset of ``subprocess.Popen`` used here."""

    @property
    def pid(self) -> int:
        """Return the process id."""

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""


@dataclass(frozen=True)
class ProcessEntry:
    """One process: ``state`` as in /proc/PID/stat, ``start`` in clock ticks since boot."""

    pid: int
    state: str
    parent: int
    session: int
    start: int


def interrupt_grace_s(torch_s: float) -> float:
    """Return the seconds that workers get after a signal: the user's, else torch's."""
    reading = settings.read_setting("HOLDFAST_GRACE_S")
    return torch_s if reading.origin == "default" else float(str(reading.value))


def adopt_orphans() -> None:
    """Become the parent of all descendants that lose theirs."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wait_for_exit(workers: Sequence[PopenLike], timeout_s: float) -> None:
    """Wait until a running worker exits, at most ``timeout_s`` seconds."""
    poll = select.poll()
    handles = []
    try:
        for worker in workers:
            if worker.poll() is None:
                handles.append(os.pidfd_open(worker.pid))
                poll.register(handles[-1], select.POLLIN)
        poll.poll(timeout_s * 1000)
    except (OSError, AttributeError):  # a kernel before 5.3, or out of descriptors
        time.sleep(timeout_s)
    finally:
        for handle in handles:
            os.close(handle)


def read_process(pid: int) -> ProcessEntry | None:
    """Return the current state of a process; None if it does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return ProcessEntry(pid, fields[0], int(fields[1]), int(fields[3]), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


def read_process_table() -> dict[int, ProcessEntry]:
    """Return all visible processes of this machine by pid."""
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return {entry.pid: entry for entry in map(read_process, pids) if entry is not None}


def select_family(
    leaders: Collection[int], table: Mapping[int, ProcessEntry]
) -> dict[int, ProcessEntry]:
    """Return the processes in the sessions of ``leaders``, and their descendants."""
    family = {pid: each for pid, each in table.items() if pid in leaders or each.session in leaders}
    while more := {
        pid: each for pid, each in table.items() if each.parent in family and pid not in family
    }:
        family |= more
    return family


def terminate(
    workers: Sequence[PopenLike],
    *,
    signal_number: signal.Signals,
    grace_s: float,
    kill_first: Collection[int] = (),
    spared: Collection[int] = (),
) -> None:
    """Send ``signal_number`` to the workers; after ``grace_s`` seconds kill their families.

    Processes in ``kill_first`` and frozen ones get SIGKILL at once. Other children of this process,
    except those ``spared``, are killed too: they are orphans of workers.
    """
    orphans = children_of(os.getpid()) - set(spared)
    family = select_family({worker.pid for worker in workers} | orphans, read_process_table())
    for worker in _running(workers):
        if worker.pid not in kill_first:
            _send_signal(worker.pid, signal_number)
    deadline = time.monotonic() + grace_s
    while (running := _running(workers)) and time.monotonic() < deadline:
        for worker in running:
            if worker.pid in kill_first or _is_frozen(worker.pid):
                kill_family([worker], select_family([worker.pid], family))
        time.sleep(_POLL_S)
    kill_family(workers, family)
    for pid in orphans - {worker.pid for worker in workers}:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def kill_family(workers: Sequence[PopenLike], earlier: Mapping[int, ProcessEntry]) -> None:
    """Kill the workers, their current family, and processes of an ``earlier`` one that still run.

    Processes that clean up shared memory are killed last, after they had time to do so
    (:mod:`holdfast.watcher.shared_memory_cleanup`).
    """
    leaders = [worker.pid for worker in workers]
    began = time.monotonic()
    while (elapsed_s := time.monotonic() - began) < KILL_TIMEOUT_S:
        for worker in workers:
            worker.poll()  # reaps a zombie
        table = read_process_table()
        left = set(select_family(leaders, table))
        left |= {pid for pid, old in earlier.items() if _is_same(old, table.get(pid))}
        left = {pid for pid in left if table[pid].state not in "ZX"}
        if not left:
            return
        if elapsed_s < shared_memory_cleanup.CLEANERS_LIMIT_S:
            left = {pid for pid in left if not shared_memory_cleanup.can_clean_up(pid)}
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def children_of(pid: int) -> frozenset[int]:
    """Return the child processes of ``pid``."""
    return frozenset(each.pid for each in read_process_table().values() if each.parent == pid)


def _running(workers: Sequence[PopenLike]) -> list[PopenLike]:
    return [worker for worker in workers if worker.poll() is None]


def _is_frozen(pid: int) -> bool:
    entry = read_process(pid)
    return entry is not None and entry.state in _FROZEN_STATES


def _is_same(old: ProcessEntry, new: ProcessEntry | None) -> bool:
    return new is not None and new.start == old.start


def handles_signal(pid: int, number: signal.Signals) -> bool:
    """Return whether the process has its own handler for the signal."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        caught = next(line for line in lines if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
    except (OSError, StopIteration, ValueError, IndexError):
        return False


def _send_signal(pid: int, number: signal.Signals) -> None:
    """Signal the worker's process group, as torchrun does, or only a worker that leads none.

    A worker with its own handler is signaled alone: it saves first, and needs its data loaders.
    """
    with suppress(ProcessLookupError, PermissionError):
        if os.getpgid(pid) == pid and not handles_signal(pid, number):
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
