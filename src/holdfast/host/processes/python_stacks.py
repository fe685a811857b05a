"""Samples Python stacks of other processes: by py-spy, or by a signal that triggers faulthandler.

py-spy reads the memory of the process without stopping it and needs no cooperation, not even the
GIL; it needs permission to ptrace. As a fallback the recorder has registered faulthandler on a
signal, which works while C code holds the GIL, but interrupts a sleep in C, and does not work in a
process that is stopped or in uninterruptible I/O. The signal is only sent to a process of which no
thread is running: faulthandler walks the frames of running threads, and crashed processes with
several busy Python threads by SIGSEGV after 30 to 120 signals (CPython 3.11.7, 3.12.1 and 3.13.0;
an import alone was enough for the newer two).
"""

from __future__ import annotations

import os
import shutil
import signal
import stat as modes
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from holdfast.core.findings import Unknown
from holdfast.core.rank_table import ProcessState, ThreadStack
from holdfast.host.processes import namespaces, proc
from holdfast.host.processes.proc import ProcessStat
from holdfast.host.processes.stack_text import (
    MAIN_THREAD,
    MAX_BYTES,
    from_faulthandler,
    from_py_spy,
)

__all__ = ["main_thread", "sample_many_stacks", "sample_stacks"]

MAX_CONCURRENT = 8
#: py-spy's share of the time if faulthandler may follow.
_PY_SPY_SHARE = 0.65
_ATTEMPTS = 3
#: A dump counts as complete if the file has not grown for this time.
_QUIET_S = 0.08
_POLL_S = 0.01
#: No thread may have run for this time before a signal is sent.
_IDLE_S = 0.02


class TracingRefused(Unknown, frozen=True):
    """The system denies ptrace of the process; a retry is pointless."""


def sample_stacks(
    pid: int,
    timeout_s: float = 1.5,
    fallback_file: Path | str | None = None,
    fallback_signal: int | None = None,
    start_ticks: int | None = None,
    root: str = "",
) -> tuple[ThreadStack, ...] | Unknown:
    """Return the stacks of all threads of ``pid``, the main thread first, in about ``timeout_s``.

    ``root``: the folder below which its source files lie (of a container). ``fallback_file``:
    faulthandler's output file; ``fallback_signal``: the signal that triggers it, only sent to a
    process that handles it and of which no thread runs. A stopped process stays stopped; one that
    py-spy left stopped is continued.
    """
    deadline = time.monotonic() + timeout_s
    stat = proc.same_process(pid, start_ticks)
    if isinstance(stat, Unknown):
        return stat
    if stat.life == ProcessState.DEAD:
        return Unknown(f"process {pid} has ended")
    has_fallback = fallback_file is not None and fallback_signal is not None
    stacks = _sample_by_py_spy(pid, timeout_s * (_PY_SPY_SHARE if has_fallback else 1.0), root)
    _leave_running(stat)
    if not has_fallback or (isinstance(stacks, tuple) and stacks[0].frames):
        return stacks
    dump = _sample_by_faulthandler(stat, Path(fallback_file or ""), fallback_signal or 0, deadline)
    if isinstance(dump, Unknown):
        return Unknown(f"{stacks.why}; {dump.why}") if isinstance(stacks, Unknown) else stacks
    return dump


def sample_many_stacks(
    wanted: Mapping[int, Path | None],
    timeout_s: float = 1.5,
    fallback_signal: int | None = None,
    root: str = "",
) -> dict[int, tuple[ThreadStack, ...] | Unknown]:
    """Run :func:`sample` for several processes concurrently.

    ``wanted`` maps pids to files of faulthandler.
    """
    if not wanted:
        return {}
    with ThreadPoolExecutor(min(len(wanted), MAX_CONCURRENT), "holdfast-stacks") as pool:
        futures = {
            pid: pool.submit(sample_stacks, pid, timeout_s, file, fallback_signal, root=root)
            for pid, file in wanted.items()
        }
        return {pid: future.result() for pid, future in futures.items()}


def main_thread(stacks: tuple[ThreadStack, ...]) -> ThreadStack | Unknown:
    """Return the stack of the main thread; Unknown if it is missing or has no Python frame."""
    main = next((stack for stack in stacks if stack.thread == MAIN_THREAD), None)
    if main is None or not main.frames:
        return Unknown("the main thread has no Python frame")
    return main


# ---- py-spy


@cache
def _py_spy() -> str | None:
    """Return the executable of this environment, else the first on PATH."""
    return shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")


def _sample_by_py_spy(pid: int, timeout_s: float, root: str) -> tuple[ThreadStack, ...] | Unknown:
    program = _py_spy()
    if program is None:
        return Unknown("py-spy is not installed; install it with: pip install py-spy")
    deadline = time.monotonic() + timeout_s
    stacks: tuple[ThreadStack, ...] | Unknown = Unknown(f"no time left to run py-spy on {pid}")
    for _ in range(_ATTEMPTS):  # py-spy may read inconsistent memory while the process runs
        left = deadline - time.monotonic()
        if left <= 0:
            break
        stacks = _dump(program, pid, left, root)
        if isinstance(stacks, tuple | TracingRefused):
            break
    return stacks


def _dump(program: str, pid: int, timeout_s: float, root: str) -> tuple[ThreadStack, ...] | Unknown:
    command = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return Unknown(f"py-spy could not be started: {error.strerror}")
    try:
        output, errors = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _kill(child)
        return Unknown(f"py-spy did not answer about process {pid} within {timeout_s:.1f} s")
    if child.returncode != 0:
        return _failure(pid, errors.decode(errors="replace"))
    stacks = from_py_spy(output, pid, _folder(pid), namespaces.own_pid(pid), root)
    if isinstance(stacks, tuple) and not any(stack.frames for stack in stacks):
        return Unknown(f"py-spy found no Python frame in process {pid}")
    return stacks


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill our py-spy; if it does not end at once (blocked in the kernel), abandon it."""
    child.kill()
    try:
        child.communicate(timeout=0.2)
    except subprocess.TimeoutExpired:
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()


def _failure(pid: int, errors: str) -> Unknown:
    if "Permission" in errors or "not permitted" in errors:
        return TracingRefused(f"py-spy has no permission to trace process {pid} (ptrace)")
    first = next((line for line in errors.splitlines() if line.strip()), "no error message")
    return Unknown(f"py-spy could not read process {pid}: {first.removeprefix('Error: ')[:200]}")


def _folder(pid: int) -> str:
    """Return the working directory of the process, the base of relative paths."""
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return ""


def _leave_running(before: ProcessStat) -> None:
    """Continue a process that was not stopped before: a killed tracer can leave it stopped."""
    now = proc.same_process(before.pid, before.started_ticks)
    if (
        isinstance(now, ProcessStat)
        and now.life == ProcessState.STOPPED
        and before.life != ProcessState.STOPPED
    ):
        _send(now, signal.SIGCONT)


# ---- faulthandler


def _sample_by_faulthandler(
    target: ProcessStat, file: Path, number: int, deadline: float
) -> tuple[ThreadStack, ...] | Unknown:
    size = _size(file)
    if size is None:
        return Unknown(f"no file {file} for faulthandler's dump")
    if target.life == ProcessState.STOPPED:
        return Unknown("the process is stopped and does not handle signals")
    if not _is_idle(target.pid, deadline):
        return Unknown("its threads are running, and faulthandler's signal could crash it")
    if not _handles(target.pid, number) or not _send(target, number):
        return Unknown(
            f"signal {number} cannot be sent to process {target.pid}, or has no handler there"
        )
    if not _has_settled(file, size, deadline):
        return Unknown(f"process {target.pid} did not answer signal {number} in time")
    return _read_dump(file, size, target.pid)


def _read_dump(file: Path, size: int, pid: int) -> tuple[ThreadStack, ...] | Unknown:
    try:
        with file.open("rb") as dump:
            dump.seek(size)
            text = dump.read(MAX_BYTES).decode(errors="replace")
    except OSError as error:
        return Unknown(f"{file} cannot be read: {error.strerror}")
    return from_faulthandler(text, _folder(pid))


def _handles(pid: int, number: int) -> bool:
    """Return whether the process handles the signal: it would kill a process that does not."""
    lines = proc.read_fields(f"/proc/{pid}/status")
    caught = lines.get("SigCgt", "0") if isinstance(lines, dict) else "0"
    try:
        return bool(int(caught, 16) >> (number - 1) & 1)
    except ValueError:
        return False


def _is_idle(pid: int, deadline: float) -> bool:
    """Wait until ``deadline`` (monotonic) for a moment in which no thread of the process runs."""
    # clock_getcpuclockid(3) of another process: the CPU time of all its threads, in ns
    clock = (~pid << 3) | 2
    try:
        while time.monotonic() < deadline:
            before = time.clock_gettime(clock)
            time.sleep(_IDLE_S)
            if not _has_running_thread(pid) and time.clock_gettime(clock) == before:
                return True
    except OSError:  # it has ended
        pass
    return False


def _has_running_thread(pid: int) -> bool:
    """Return whether a thread of the process runs, or waits for a CPU."""
    tasks = Path(f"/proc/{pid}/task")
    threads = (proc.read_stat(int(entry.name), tasks) for entry in tasks.iterdir())
    return any(isinstance(thread, ProcessStat) and thread.state == "R" for thread in threads)


def _send(target: ProcessStat, number: int) -> bool:
    """Send a signal to this process; a pidfd, where supported, excludes reuse of the pid."""
    try:
        descriptor = os.pidfd_open(target.pid)
    except (OSError, AttributeError):  # before Linux 5.3, or a Python built for that
        descriptor = -1
    try:
        if isinstance(proc.same_process(target.pid, target.started_ticks), Unknown):
            return False
        if descriptor >= 0:
            signal.pidfd_send_signal(descriptor, number)
        else:
            os.kill(target.pid, number)
    except OSError:
        return False
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return True


def _size(file: Path) -> int | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_size if modes.S_ISREG(status.st_mode) else None


def _has_settled(file: Path, size: int, deadline: float) -> bool:
    """Wait until the file has grown beyond ``size`` and stopped growing.

    False if it has not grown in time.
    """
    last, since = size, time.monotonic()
    while (now := time.monotonic()) < deadline:
        current = _size(file) or size
        if current != last:
            last, since = current, now
        elif last > size and now - since >= _QUIET_S:
            return True
        time.sleep(_POLL_S)
    return last > size
