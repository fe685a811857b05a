"""Python stacks of other processes, taken from outside: by py-spy, or by a signal that faulthandler answers.

py-spy reads the memory of the process without stopping it and needs nothing of it, not even the GIL; it needs leave to
trace. Where that is refused or too slow, the recorder has registered faulthandler on a signal, which works while C code
holds the GIL, but interrupts a sleep in C, and is not answered by a process that is stopped or in uninterruptible I/O.
It is asked only of a process of which no thread runs: faulthandler walks the frames of threads that run on
meanwhile, and ended processes with several busy Python threads by SIGSEGV after 30 to 120 signals (CPython 3.11.7,
3.12.1 and 3.13.0; an import alone was enough for the newer two).
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

from holdfast.facts import proc
from holdfast.facts.proc import Stat
from holdfast.facts.ranks import Life, Stack
from holdfast.facts.stack_text import MAIN, MOST_BYTES, from_faulthandler, from_py_spy
from holdfast.facts.user_code import innermost_user
from holdfast.findings import Unknown

__all__ = ["innermost_user", "main_thread", "sample", "sample_many"]

MOST_AT_ONCE = 8
#: py-spy's part of the time, where faulthandler may still be asked after it.
_PY_SPY_SHARE = 0.65
_ATTEMPTS = 3
#: A dump is taken for whole when the file has not grown for so long.
_QUIET_S = 0.08
_POLL_S = 0.01
#: No thread may have run for so long when a signal is sent.
_STILL_S = 0.02


class Refused(Unknown, frozen=True):
    """The system does not let us trace the process; trying again is of no use."""


def sample(
    pid: int,
    timeout_s: float = 1.5,
    fallback_file: Path | str | None = None,
    fallback_signal: int | None = None,
    start_ticks: int | None = None,
) -> tuple[Stack, ...] | Unknown:
    """The stacks of all threads of ``pid``, the main thread first, within about ``timeout_s``.

    ``fallback_file`` and ``fallback_signal`` are where faulthandler writes and what makes it write; the signal is sent
    only to a process that handles it, and of which no thread runs. A process that was stopped stays so; one that py-spy
    left stopped is continued.
    """
    deadline = time.monotonic() + timeout_s
    seen = proc.same_process(pid, start_ticks)
    if isinstance(seen, Unknown):
        return seen
    if seen.life == Life.DEAD:
        return Unknown(f"process {pid} has ended")
    can_ask = fallback_file is not None and fallback_signal is not None
    stacks = _by_py_spy(pid, timeout_s * (_PY_SPY_SHARE if can_ask else 1.0))
    _leave_running(seen)
    if not can_ask or (isinstance(stacks, tuple) and stacks[0].frames):
        return stacks
    asked = _by_faulthandler(seen, Path(fallback_file or ""), fallback_signal or 0, deadline)
    if isinstance(asked, Unknown):
        return Unknown(f"{stacks.why}; {asked.why}") if isinstance(stacks, Unknown) else stacks
    return asked


def sample_many(
    wanted: Mapping[int, Path | None], timeout_s: float = 1.5, fallback_signal: int | None = None
) -> dict[int, tuple[Stack, ...] | Unknown]:
    """:func:`sample` of several processes at once; ``wanted`` names each with the file of its faulthandler."""
    if not wanted:
        return {}
    with ThreadPoolExecutor(min(len(wanted), MOST_AT_ONCE), "holdfast-stacks") as pool:
        taken = {pid: pool.submit(sample, pid, timeout_s, file, fallback_signal) for pid, file in wanted.items()}
        return {pid: future.result() for pid, future in taken.items()}


def main_thread(stacks: tuple[Stack, ...]) -> Stack | Unknown:
    """The stack of the main thread; Unknown where it is not among them or runs no Python."""
    found = next((stack for stack in stacks if stack.thread == MAIN), None)
    if found is None or not found.frames:
        return Unknown("the main thread shows no Python frame")
    return found


# ---- py-spy ----------------------------------------------------------------------------------------------------------


@cache
def _py_spy() -> str | None:
    """The executable of this environment, else the first on PATH."""
    return shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")


def _by_py_spy(pid: int, timeout_s: float) -> tuple[Stack, ...] | Unknown:
    program = _py_spy()
    if program is None:
        return Unknown("py-spy is not installed; install it with: pip install py-spy")
    deadline = time.monotonic() + timeout_s
    found: tuple[Stack, ...] | Unknown = Unknown(f"py-spy had no time for process {pid}")
    for _ in range(_ATTEMPTS):  # it reads memory that changes under its eyes, and may have to try again
        left = deadline - time.monotonic()
        if left <= 0:
            break
        found = _dump(program, pid, left)
        if isinstance(found, tuple | Refused):
            break
    return found


def _dump(program: str, pid: int, timeout_s: float) -> tuple[Stack, ...] | Unknown:
    command = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        return Unknown(f"py-spy could not be started: {error.strerror}")
    try:
        output, said = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _end(child)
        return Unknown(f"py-spy did not answer about process {pid} within {timeout_s:.1f} s")
    if child.returncode != 0:
        return _failure(pid, said.decode(errors="replace"))
    stacks = from_py_spy(output, pid, _folder(pid))
    if isinstance(stacks, tuple) and not any(stack.frames for stack in stacks):
        return Unknown(f"py-spy sees no Python frame in process {pid}")
    return stacks


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill our own py-spy; where even that is not heard at once (it waits in the kernel), leave it behind."""
    child.kill()
    try:
        child.communicate(timeout=0.2)
    except subprocess.TimeoutExpired:
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()


def _failure(pid: int, said: str) -> Unknown:
    if "Permission" in said or "not permitted" in said:
        return Refused(f"py-spy was refused leave to trace process {pid} (ptrace)")
    first = next((line for line in said.splitlines() if line.strip()), "no word")
    return Unknown(f"py-spy could not read process {pid}: {first.removeprefix('Error: ')[:200]}")


def _folder(pid: int) -> str:
    """The working folder of the process, from which relative paths are meant."""
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return ""


def _leave_running(before: Stat) -> None:
    """Continue a process that was not stopped before and is now: a tracer that was cut short can leave it so."""
    now = proc.same_process(before.pid, before.started_ticks)
    if isinstance(now, Stat) and now.life == Life.STOPPED and before.life != Life.STOPPED:
        _send(now, signal.SIGCONT)


# ---- faulthandler ----------------------------------------------------------------------------------------------------


def _by_faulthandler(target: Stat, file: Path, number: int, deadline: float) -> tuple[Stack, ...] | Unknown:
    size = _size(file)
    if size is None:
        return Unknown(f"there is no file {file} for faulthandler's dump")
    if target.life == Life.STOPPED:
        return Unknown("a stopped process does not answer a signal")
    if not _rests(target.pid, deadline):
        return Unknown("threads of it run, and a signal for faulthandler could end it")
    if not _handles(target.pid, number) or not _send(target, number):
        return Unknown(f"signal {number} cannot be sent to process {target.pid}, or is not handled by it")
    if not _has_settled(file, size, deadline):
        return Unknown(f"process {target.pid} did not answer signal {number} in time")
    return _read_dump(file, size, target.pid)


def _read_dump(file: Path, size: int, pid: int) -> tuple[Stack, ...] | Unknown:
    try:
        with file.open("rb") as dump:
            dump.seek(size)
            text = dump.read(MOST_BYTES).decode(errors="replace")
    except OSError as error:
        return Unknown(f"{file} cannot be read: {error.strerror}")
    return from_faulthandler(text, _folder(pid))


def _handles(pid: int, number: int) -> bool:
    """True where the process catches the signal: one that does not would be killed by it."""
    lines = proc.fields(f"/proc/{pid}/status")
    caught = lines.get("SigCgt", "0") if isinstance(lines, dict) else "0"
    try:
        return bool(int(caught, 16) >> (number - 1) & 1)
    except ValueError:
        return False


def _rests(pid: int, deadline: float) -> bool:
    """Whether no thread of the process ran for a moment, which is waited for until ``deadline`` (monotonic)."""
    clock = (~pid << 3) | 2  # clock_getcpuclockid(3) of another process: the CPU time of all its threads, in ns
    try:
        while time.monotonic() < deadline:
            before = time.clock_gettime(clock)
            time.sleep(_STILL_S)
            if not _runs(pid) and time.clock_gettime(clock) == before:
                return True
    except OSError:  # it has ended
        pass
    return False


def _runs(pid: int) -> bool:
    """True where a thread of the process runs, or waits for a processor."""
    tasks = Path(f"/proc/{pid}/task")
    seen = (proc.stat(int(entry.name), tasks) for entry in tasks.iterdir())
    return any(isinstance(thread, Stat) and thread.state == "R" for thread in seen)


def _send(target: Stat, number: int) -> bool:
    """Send a signal to this very process: a descriptor, if there are such, holds it meanwhile."""
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
        seen = file.stat()
    except OSError:
        return None
    return seen.st_size if modes.S_ISREG(seen.st_mode) else None


def _has_settled(file: Path, size: int, deadline: float) -> bool:
    """Wait until the file has grown beyond ``size`` and then rested; False where it has not grown in time."""
    last, since = size, time.monotonic()
    while (now := time.monotonic()) < deadline:
        current = _size(file) or size
        if current != last:
            last, since = current, now
        elif last > size and now - since >= _QUIET_S:
            return True
        time.sleep(_POLL_S)
    return last > size
