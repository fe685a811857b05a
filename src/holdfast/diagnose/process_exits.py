"""Add the exit codes that launchers log to the rank tables of trace files and dumps.

A launcher names a rank, a process, or both. If it names the process, and the table has the process
of that rank, they must agree: a log may be of an earlier attempt. Exits that launchers cause after
a failure, and aborts by torch after a timeout, do not begin a failure and are ignored.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.findings import Fact
from holdfast.core.rank_table import ProcessState, RankState
from holdfast.diagnose.logs import LogFacts, LoggedSignal, LogLine

#: Distance in lines between a rank and its exit code in torchrun's failure table.
_MAX_ROW_LINES = 4
#: A shell reports 128 plus the number of the signal, up to 64.
_SHELL_OFFSET, _LAST_SIGNAL = 128, 64
_MAX_TASKS = 1 << 16
_OUT_OF_MEMORY = re.compile(r"out.?of.?memory|oom.?kill", re.IGNORECASE)
#: Slurm's text about the end of a task -> exit code.
_TASK_EXITS = (
    (_OUT_OF_MEMORY, -signal.SIGKILL),
    (re.compile(r"\bKilled\b"), -signal.SIGKILL),
    (re.compile(r"Segmentation fault"), -signal.SIGSEGV),
    (re.compile(r"Bus error"), -signal.SIGBUS),
    (re.compile(r"Illegal instruction"), -signal.SIGILL),
    (re.compile(r"Floating point exception"), -signal.SIGFPE),
    (re.compile(r"Aborted"), -signal.SIGABRT),
    (re.compile(r"Terminated"), -signal.SIGTERM),
)
_TASK_CODE = re.compile(r"[Ee]xit(?:ed with exit)? code (\d{1,3})")


class ProcessExit(msgspec.Struct, frozen=True, gc=False):
    """The logged end of one process: its exit code (negative: the signal) and the log line.

    ``rank`` and ``pid`` are None if the line does not name them.
    """

    code: int
    line: LogLine
    rank: int | None = None
    pid: int | None = None
    out_of_memory: bool = False


class RowsWithExits(msgspec.Struct, frozen=True):
    """A table's rows with exit codes, and the log line about each rank that has one."""

    ranks: tuple[RankState, ...]
    facts: dict[int, Fact]


def add_exits(rows: Sequence[RankState], facts: LogFacts | None, world_size: int) -> RowsWithExits:
    """Return the rows with logged exit codes, and new rows for ranks that only a launcher knows."""
    if facts is None:
        return RowsWithExits(tuple(rows), {})
    exits = {rank: found for rank, found in _exits_by_rank(rows, facts) if rank < world_size}
    exits = _without_effects(exits, facts)
    known = {row.rank for row in rows}
    others = (RankState(rank=rank) for rank in exits.keys() - known)
    completed = [_add_exit(row, exits.get(row.rank)) for row in (*rows, *others)]
    return RowsWithExits(
        tuple(sorted(completed, key=lambda row: row.rank)),
        {rank: replace(found.line.as_fact(), rank=rank) for rank, found in exits.items()},
    )


def _exits_by_rank(rows: Sequence[RankState], facts: LogFacts) -> Iterator[tuple[int, ProcessExit]]:
    by_pid: dict[int, list[RankState]] = {}
    for row in rows:
        by_pid.setdefault(row.pid, []).append(row)
    pids = {row.rank: row.pid for row in rows}
    for found in _exits(facts):
        if found.rank is not None:
            if found.pid is None or pids.get(found.rank, 0) in (0, found.pid):
                yield found.rank, found
        elif found.pid and len(same := by_pid.get(found.pid, [])) == 1:
            yield same[0].rank, found


def _add_exit(row: RankState, found: ProcessExit | None) -> RankState:
    if (
        found is None
        or row.exit_code is not None
        or row.life not in (ProcessState.UNKNOWN, ProcessState.DEAD)
    ):
        return row
    return replace(
        row,
        exit_code=found.code,
        life=ProcessState.DEAD,
        out_of_memory=found.out_of_memory,
        host=row.host or found.line.host,
    )


def _without_effects(exits: dict[int, ProcessExit], facts: LogFacts) -> dict[int, ProcessExit]:
    """Return the exits with which the failure can have begun."""
    codes = [found.code for found in exits.values()]
    effects = {-signal.SIGTERM, -signal.SIGABRT}
    timed_out = any(one.name == "watchdog-timeout" for one in facts.signals)
    has_beginning = any(code not in {0, *effects} for code in codes)
    if not has_beginning and not timed_out and codes.count(-signal.SIGABRT) <= 1:
        effects = {-signal.SIGTERM} if -signal.SIGABRT in codes else set()
    return {rank: found for rank, found in exits.items() if found.code not in effects}


# ---- the formats of launchers


def _exits(facts: LogFacts) -> Iterator[ProcessExit]:
    """Yield every logged end of a process, the most reliable source last."""
    # Under torchrun, Slurm's tasks are agents, not ranks.
    has_agents = any(one.name in ("exit-code", "failed-code") for one in facts.signals)
    for one in facts.signals:
        if one.name in _PARSERS and not (has_agents and one.name == "slurm-task"):
            yield from _PARSERS[one.name](one)
    yield from _parse_failure_table(facts)


def _parse_failure_table(facts: LogFacts) -> Iterator[ProcessExit]:
    """Yield from torchrun's failure table, where rank and exit code are on lines of their own."""
    ranks = [one for one in facts.signals if one.name == "failed-rank"]
    for code in (one for one in facts.signals if one.name == "failed-code"):
        above = (one for one in reversed(ranks) if _is_row_above(one.line, code.line))
        row = next(above, None)
        if row is not None:
            number, pid = int(code.fields["code"]), int(code.fields["pid"])
            yield ProcessExit(_decode_code(number), code.line, int(row.fields["rank"]), pid)


def _is_row_above(earlier: LogLine, later: LogLine) -> bool:
    distance = later.number - earlier.number
    return later.source == earlier.source and 0 < distance <= _MAX_ROW_LINES


def _parse_agent_line(one: LoggedSignal) -> Iterator[ProcessExit]:
    """Parse torchrun's ``failed (exitcode: -9) local_rank: 1 (pid: 4711)``."""
    code, pid = int(one.fields["code"]), int(one.fields["pid"])
    yield ProcessExit(_decode_code(code), one.line, pid=pid)


def _parse_slurm_line(one: LoggedSignal) -> Iterator[ProcessExit]:
    """Parse Slurm's ``srun: error: node1: tasks 3,5-6: Killed``."""
    text = str(one.fields["what"])
    stated = _TASK_CODE.search(text)
    if stated:
        code = _decode_code(int(stated[1]))
    else:
        code = next((code for pattern, code in _TASK_EXITS if pattern.search(text)), 0)
        if not code:
            return
    out_of_memory = bool(_OUT_OF_MEMORY.search(text))
    for rank in _parse_task_list(str(one.fields["tasks"])):
        yield ProcessExit(code, one.line, rank, out_of_memory=out_of_memory)


def _parse_mpi_line(one: LoggedSignal) -> Iterator[ProcessExit]:
    """Parse mpirun's ``process rank 3 … exited on signal 9``."""
    if "rank" in one.fields and "signal" in one.fields:
        yield ProcessExit(-int(one.fields["signal"]), one.line, int(one.fields["rank"]))


_PARSERS = {
    "exit-code": _parse_agent_line,
    "slurm-task": _parse_slurm_line,
    "mpi-signal": _parse_mpi_line,
}


def _decode_code(code: int) -> int:
    """Return the exit code, negative if a shell reports a signal."""
    is_signal = _SHELL_OFFSET < code <= _SHELL_OFFSET + _LAST_SIGNAL
    return _SHELL_OFFSET - code if is_signal else code


def _parse_task_list(text: str) -> Iterator[int]:
    """Yield the numbers in ``3``, ``1,3`` and ``[0-2,5]``."""
    for first, last in re.findall(r"(\d{1,6})(?:-(\d{1,6}))?", text):
        yield from range(int(first), min(int(last or first), int(first) + _MAX_TASKS) + 1)
