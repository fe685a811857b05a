"""Explains a living rank that the others wait for, by what its process and its stack show."""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec.structs import replace

from holdfast.causes.data.dataloader_worker_died import DATALOADER_WORKER_DIED
from holdfast.causes.data.file_io_blocked import FILE_IO_BLOCKED
from holdfast.causes.performance.computing_long import COMPUTING_LONG
from holdfast.causes.process.python_lock_held import PYTHON_LOCK_HELD
from holdfast.causes.process.rank_stopped import RANK_STOPPED
from holdfast.causes.process.rank_uninterruptible_io import RANK_UNINTERRUPTIBLE_IO
from holdfast.causes.sync.rank_missing_collective import RANK_MISSING_COLLECTIVE
from holdfast.causes.sync.store_wait import STORE_WAIT
from holdfast.core.findings import Finding
from holdfast.core.rank_table import ProcessState, RankState, SourceLine
from holdfast.watcher.rules.call_sites import SourceContexts
from holdfast.watcher.rules.helper_threads import user_line
from holdfast.watcher.rules.rank_findings import (
    Evidence,
    at_line,
    describe_exception,
    last_line,
    rank_finding,
)
from holdfast.watcher.rules.stall import (
    ANOTHER_PROGRAM,
    DOWNLOAD,
    is_busy,
    visible_phase,
)

#: A rule for one rank: the call that the others wait in is the last argument.
RankRule = Callable[[RankState, SourceContexts, str], Finding | None]
#: A process uses at most this fraction of a core if nothing happens in its main thread.
IDLE_CPU_SHARE = 0.05
#: The rank waits for its data-loader workers; without workers it loads the data itself.
_LOADER_FRAMES = re.compile(r"/torch/utils/data/dataloader\.py:_(try_)?get_data$")
#: Library frames of a thread that waits for another one.
_LOCK_FRAMES = (
    (re.compile(r"/queue\.py:get$|/multiprocessing/queues\.py:get$"), "an entry of a queue"),
    (re.compile(r"/threading\.py:(wait|acquire|join|_wait_for_tstate_lock)$"), "another thread"),
    (re.compile(r"/multiprocessing/\w+\.py:(wait|join|poll)$"), "another process"),
)


def _explain_stop(state: RankState, _source: SourceContexts, waited: str) -> Finding | None:
    line = last_line(state)
    stat = f"/proc/{state.pid}/stat"
    if state.life == ProcessState.STOPPED:
        message = (
            f"rank {state.rank} is stopped (SIGSTOP, a debugger or a frozen cgroup)"
            f"{at_line(line, ' at ')}{_others_wait(waited)}"
        )
        return rank_finding(RANK_STOPPED, state, message, line, Evidence(stat, "state T: stopped"))
    if state.life == ProcessState.DISK:
        message = f"rank {state.rank} is in uninterruptible I/O{at_line(line, ' at ')}"
        text = "state D: the kernel waits for a device or file system"
        return rank_finding(RANK_UNINTERRUPTIBLE_IO, state, message, line, Evidence(stat, text))
    return None


def _explain_data_loader(state: RankState, _source: SourceContexts, _waited: str) -> Finding | None:
    if not any(
        _LOADER_FRAMES.search(f"{frame.file}:{frame.function}")
        for stack in state.stacks[-1:]
        for frame in stack.frames
    ):
        return None
    line = last_line(state)
    waits = f"rank {state.rank} waits{at_line(line, ' at ')}"
    exited = next((child for child in state.children if not child.alive), None)
    if exited is not None:
        message = f"{waits} for a data-loader worker (pid {exited.pid}) that has exited"
        fact = Evidence("/proc", f"child process {exited.pid} ({exited.name}) has ended")
        return rank_finding(DATALOADER_WORKER_DIED, state, message, line, fact)
    message = f"{waits} for its data-loader workers, which return no data"
    count = len(state.children)
    alive = [Evidence("/proc", f"{count} child processes are alive")] if count else []
    return rank_finding(DATALOADER_WORKER_DIED, state, message, line, *alive, confidence=0.6)


def _explain_file_wait(state: RankState, _source: SourceContexts, waited: str) -> Finding | None:
    if state.blocked_on is None:
        return None
    line = last_line(state)
    message = (
        f"rank {state.rank} is blocked on {state.blocked_on}{at_line(line, ' at ')}"
        f"{_others_wait(waited)}"
    )
    fact = Evidence(f"/proc/{state.pid}/syscall", f"the main thread waits for {state.blocked_on}")
    return rank_finding(FILE_IO_BLOCKED, state, message, line, fact)


def _explain_held_lock(state: RankState, _source: SourceContexts, waited: str) -> Finding | None:
    """Explain native code that sleeps without releasing the GIL: it may wait for a GIL waiter."""
    if state.cpu_share is None or state.cpu_share >= IDLE_CPU_SHARE or len(state.stacks) < 2:
        return None
    before, newest = state.stacks[-2:]
    if not (before.holds_lock and newest.holds_lock and before.frames == newest.frames):
        return None
    line = last_line(state)
    message = (
        f"rank {state.rank} is asleep in native code while holding the GIL{at_line(line, ' at ')}"
        f"{_others_wait(waited)}"
    )
    fact = Evidence(
        f"process {state.pid}", "the main thread holds the GIL and does not run, in two samples"
    )
    return rank_finding(PYTHON_LOCK_HELD, state, message, line, fact)


#: Rules for a rank that the others wait for in ``waited``, the most specific first.
BLOCK_RULES: tuple[RankRule, ...] = (
    _explain_stop,
    _explain_data_loader,
    _explain_file_wait,
    _explain_held_lock,
)


def explain_elsewhere(state: RankState, source: SourceContexts, waited: str) -> Finding:
    """Explain a rank that is alive outside of the call that the others wait in."""
    line = last_line(state)
    if waited.startswith("init_process_group"):
        message = f"rank {state.rank} has not reached {waited}{at_line(line, '; it is at ')}"
        return rank_finding(STORE_WAIT, state, message, line, confidence=0.8)
    if not state.stacks:
        message = f"rank {state.rank} never entered {waited}; its location is unknown"
        return rank_finding(RANK_MISSING_COLLECTIVE, state, message, line, confidence=0.6)
    activity = ""
    if state.cpu_share is not None:
        activity = f"{state.cpu_share:.0%} CPU between two samples"
    elif state.life != ProcessState.UNKNOWN:
        activity = f"state {state.life}"
    evidence = [Evidence(f"process {state.pid}", activity)] if activity else []
    never = f"rank {state.rank} never entered {waited}"
    if is_busy(state):
        loop = _line_of_loop(state, source) or line
        message = f"{never}; it computes{at_line(loop, ' at ')}"
        return rank_finding(COMPUTING_LONG, state, message, loop, *evidence)
    message = f"{never}; it is blocked{at_line(line, ' at ')}{_awaited_outside(state)}"
    if state.printed is not None:
        text = describe_exception(state.printed) + at_line(state.printed.place, " at ")
        message += f"; its stderr ends with {text}"
        evidence.append(Evidence(state.printed.origin, text))
    return rank_finding(RANK_MISSING_COLLECTIVE, state, message, line, *evidence, confidence=0.93)


def _line_of_loop(state: RankState, source: SourceContexts) -> SourceLine | None:
    """Return the line of work that does not end, from stacks over a longer time.

    It is the last line reached in the innermost function, unless a ``while`` loop calls that one;
    of a ``continue``, it is the test before it.
    """
    if not state.steady:
        return None
    context = source.get(state.steady[0])
    loops = context.loops if context is not None else ()
    if loops and loops[-1].header.startswith("while"):
        return state.steady[0]
    last = state.steady[-1]
    context = source.get(last)
    if context is not None and context.text == "continue" and context.guards:
        return replace(last, line=context.guards[-1].line)
    return last


def _awaited_outside(state: RankState) -> str:
    """Describe what a rank waits for outside of the job, if its stack shows it."""
    phase = visible_phase(state)
    if phase == DOWNLOAD:
        return ", waiting for a reply over the network"
    if phase == ANOTHER_PROGRAM:
        child = next(
            (f" ({each.name}, pid {each.pid})" for each in state.children if each.alive), ""
        )
        return f", waiting for another program{child}"
    if state.helper is not None:
        where = at_line(user_line(state.helper), " at ")
        return f", waiting for its thread {state.helper.thread!r}{where}"
    return next(
        (
            f", waiting for {what}"
            for frame in (state.stacks[-1].frames[:3] if state.stacks else ())
            for pattern, what in _LOCK_FRAMES
            if pattern.search(f"{frame.file}:{frame.function}")
        ),
        "",
    )


def _others_wait(waited: str) -> str:
    return f"; the other ranks wait in {waited}" if waited else ""
