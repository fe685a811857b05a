"""Ends workers and all that they started: politely where that can work, at once where it cannot.

A worker leads a session of its own, so that its data-loader processes are found after it has gone; what left that
session too is found because this process adopts orphans. A frozen process (SIGSTOP, a debugger) never sees SIGTERM,
and waiting for it is wasted time: it gets SIGKILL, whose effect it cannot delay.
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

from holdfast.runtime import leftovers

#: How long we wait for processes that got SIGKILL; only one in uninterruptible I/O needs longer, and may have it.
KILL_LIMIT_S = 5.0
_POLL_S = 0.02
_FROZEN = "tT"
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


class Child(Protocol):
    """A process that this one started: what of ``subprocess.Popen`` is needed here."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def poll(self) -> int | None:
        """Its exit code, None while it lives."""


@dataclass(frozen=True)
class Process:
    """One line of the process table. ``state`` as in /proc/pid/stat, ``start`` in clock ticks since boot."""

    pid: int
    state: str
    parent: int
    session: int
    start: int


def adopt_orphans() -> None:
    """Become the parent of every process below this one that loses its own, so that none is lost sight of."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wait(workers: Sequence[Child], limit_s: float) -> None:
    """Wait ``limit_s`` seconds at most, less where one of the workers ends meanwhile."""
    waiting = select.poll()
    handles = []
    try:
        for worker in workers:
            if worker.poll() is None:
                handles.append(os.pidfd_open(worker.pid))
                waiting.register(handles[-1], select.POLLIN)
        waiting.poll(limit_s * 1000)
    except (OSError, AttributeError):  # a kernel before 5.3, or no descriptor left
        time.sleep(limit_s)
    finally:
        for handle in handles:
            os.close(handle)


def look(pid: int) -> Process | None:
    """The process as it is now; None where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return Process(pid, fields[0], int(fields[1]), int(fields[3]), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


def processes() -> dict[int, Process]:
    """Every process of this machine that can be seen."""
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return {found.pid: found for found in map(look, pids) if found is not None}


def family(leaders: Collection[int], table: Mapping[int, Process]) -> dict[int, Process]:
    """The processes in the sessions that ``leaders`` lead, living or not, and all that descend from those."""
    found = {pid: each for pid, each in table.items() if pid in leaders or each.session in leaders}
    while more := {pid: each for pid, each in table.items() if each.parent in found and pid not in found}:
        found |= more
    return found


def end(
    workers: Sequence[Child],
    *,
    word: signal.Signals,
    patience_s: float,
    at_once: Collection[int] = (),
    spared: Collection[int] = (),
) -> None:
    """Send ``word`` to the workers, after ``patience_s`` seconds SIGKILL to those that still live, and to their kin.

    The processes ``at_once`` and all that are frozen get SIGKILL without any wait. Kin are also this process's other
    children, except those ``spared``: orphans of workers that have gone.
    """
    orphans = children_of(os.getpid()) - set(spared)
    kin = family({worker.pid for worker in workers} | orphans, processes())
    for worker in _living(workers):
        if worker.pid not in at_once:
            _send(worker.pid, word)
    deadline = time.monotonic() + patience_s
    while (living := _living(workers)) and time.monotonic() < deadline:
        for worker in living:
            if worker.pid in at_once or _frozen(worker.pid):
                kill_family([worker], family([worker.pid], kin))
        time.sleep(_POLL_S)
    kill_family(workers, kin)
    for pid in orphans - {worker.pid for worker in workers}:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def kill_family(workers: Sequence[Child], kin: Mapping[int, Process]) -> None:
    """SIGKILL for the workers, what descends from them now, and what of ``kin`` (seen before) still lives.

    Who cleans up after them comes last, and is given the time to do so (:mod:`holdfast.runtime.leftovers`).
    """
    leaders = [worker.pid for worker in workers]
    begun = time.monotonic()
    while (taken := time.monotonic() - begun) < KILL_LIMIT_S:
        for worker in workers:
            worker.poll()  # a child that ended is a zombie until it is asked
        table = processes()
        left = {**family(leaders, table), **{pid: old for pid, old in kin.items() if _same(old, table.get(pid))}}
        left = {pid: each for pid, each in left.items() if table[pid].state not in "ZX"}
        if not left:
            return
        cleaners = {pid for pid in left if taken < leftovers.CLEANERS_LIMIT_S and leftovers.cleans_up(pid)}
        for pid in left.keys() - cleaners:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def children_of(pid: int) -> frozenset[int]:
    """The processes whose parent is ``pid``."""
    return frozenset(each.pid for each in processes().values() if each.parent == pid)


def _living(workers: Sequence[Child]) -> list[Child]:
    return [worker for worker in workers if worker.poll() is None]


def _frozen(pid: int) -> bool:
    found = look(pid)
    return found is not None and found.state in _FROZEN


def _same(old: Process, new: Process | None) -> bool:
    return new is not None and new.start == old.start


def catches(pid: int, word: signal.Signals) -> bool:
    """Whether the process has a handler of its own for the signal."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        caught = next(line for line in lines if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (word - 1) & 1)
    except (OSError, StopIteration, ValueError, IndexError):
        return False


def _send(pid: int, word: signal.Signals) -> None:
    """To the worker's process group, as torchrun does it; to the worker alone where it leads none.

    A worker with a handler of its own is told alone too: it saves first, and needs its data loaders until then.
    """
    with suppress(ProcessLookupError, PermissionError):
        if os.getpgid(pid) == pid and not catches(pid, word):
            os.killpg(pid, word)
        else:
            os.kill(pid, word)
