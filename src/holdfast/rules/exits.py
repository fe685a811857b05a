"""How processes ended, as launchers write it into their logs, put into the table of ranks that boxes or dumps make.

A launcher names a rank, a process or both; where it names the process, and the table knows its own, they have to agree:
a log may tell of an earlier attempt. What a launcher does to the others after a failure, and what torch does to itself
after a time-out, ended no job.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.facts.logs import Line, LogFacts, Signal
from holdfast.facts.ranks import Life, RankState
from holdfast.findings import Fact

#: A rank and its exit code stand so few lines from each other in torchrun's table.
_ROW_LINES = 4
#: A shell says 128 and the number of the signal.
_SHELL = 128
_MOST_TASKS = 1 << 16
_SAID = (
    (re.compile(r"out.?of.?memory|oom.?kill", re.IGNORECASE), -signal.SIGKILL),
    (re.compile(r"\bKilled\b"), -signal.SIGKILL),
    (re.compile(r"Segmentation fault"), -signal.SIGSEGV),
    (re.compile(r"Bus error"), -signal.SIGBUS),
    (re.compile(r"Illegal instruction"), -signal.SIGILL),
    (re.compile(r"Floating point exception"), -signal.SIGFPE),
    (re.compile(r"Aborted"), -signal.SIGABRT),
    (re.compile(r"Terminated"), -signal.SIGTERM),
)
_CODE = re.compile(r"[Ee]xit(?:ed with exit)? code (\d{1,3})")


class Exit(msgspec.Struct, frozen=True, gc=False):
    """How one process ended: its exit code (negative: the signal), and the line that says so. None is not said."""

    code: int
    line: Line
    rank: int | None = None
    pid: int | None = None
    out_of_memory: bool = False


class Joined(msgspec.Struct, frozen=True):
    """The rows with what was told, and for each rank of which something was, the fact."""

    ranks: tuple[RankState, ...]
    facts: dict[int, Fact]


def join(rows: Sequence[RankState], facts: LogFacts | None, world_size: int) -> Joined:
    """The rows, with exit codes where logs tell them; a rank that only a launcher knows gets a row of its own."""
    if facts is None:
        return Joined(tuple(rows), {})
    told = _that_count({rank: found for rank, found in _by_rank(rows, facts) if rank < world_size}, facts)
    known = {row.rank for row in rows}
    others = tuple(RankState(rank=rank) for rank in sorted(told.keys() - known))
    joined = tuple(_ended(row, told.get(row.rank)) for row in (*rows, *others))
    return Joined(
        tuple(sorted(joined, key=lambda row: row.rank)), {rank: _fact(rank, found) for rank, found in told.items()}
    )


def _by_rank(rows: Sequence[RankState], facts: LogFacts) -> Iterator[tuple[int, Exit]]:
    pids: dict[int, list[RankState]] = {}
    for row in rows:
        pids.setdefault(row.pid, []).append(row)
    own = {row.rank: row.pid for row in rows}
    for found in _exits(facts):
        if found.rank is not None and (found.pid is None or own.get(found.rank, 0) in (0, found.pid)):
            yield found.rank, found
        elif found.rank is None and found.pid and len(same := pids.get(found.pid, [])) == 1:
            yield same[0].rank, found


def _ended(row: RankState, found: Exit | None) -> RankState:
    if found is None or row.exit_code is not None or row.life not in (Life.UNKNOWN, Life.DEAD):
        return row
    return replace(
        row, exit_code=found.code, life=Life.DEAD, out_of_memory=found.out_of_memory, host=row.host or found.line.host
    )


def _that_count(told: dict[int, Exit], facts: LogFacts) -> dict[int, Exit]:
    """Those ends with which the failure can have begun."""
    codes = [found.code for found in told.values()]
    apart = {0, -signal.SIGTERM, -signal.SIGABRT}
    timed_out = any(each.name == "watchdog-timeout" for each in facts.signals)
    if any(code not in apart for code in codes) or timed_out or codes.count(-signal.SIGABRT) > 1:
        return {rank: found for rank, found in told.items() if found.code not in apart - {0}}
    aborted = -signal.SIGABRT in codes
    return {rank: found for rank, found in told.items() if not (aborted and found.code == -signal.SIGTERM)}


def _fact(rank: int, found: Exit) -> Fact:
    line = found.line
    return Fact(text=line.text.strip()[:300], origin=f"{line.source}:{line.number}", rank=rank, time=line.time)


# ---- what launchers write


def _exits(facts: LogFacts) -> Iterator[Exit]:
    """Every end of a process that the logs tell, the surest telling last."""
    agents = any(each.name in ("exit-code", "failed-code") for each in facts.signals)
    for each in facts.signals:
        if each.name in _READERS and not (agents and each.name == "slurm-task"):  # its tasks are agents then
            yield from _READERS[each.name](each)
    yield from _table(facts)


def _table(facts: LogFacts) -> Iterator[Exit]:
    """The table of failures that torchrun prints, in which rank and exit code stand on lines of their own."""
    ranks = [each for each in facts.signals if each.name == "failed-rank"]
    for code in (each for each in facts.signals if each.name == "failed-code"):
        above = (each for each in reversed(ranks) if 0 < _distance(each, code) <= _ROW_LINES)
        row = next(above, None)
        if row is not None:
            number, pid = int(code.fields["code"]), int(code.fields["pid"])
            yield Exit(_plain(number), code.line, int(row.fields["rank"]), pid)


def _distance(earlier: Signal, later: Signal) -> int:
    """Lines from one to the other; 0 in different logs."""
    return later.line.number - earlier.line.number if later.line.source == earlier.line.source else 0


def _agent(said: Signal) -> Iterator[Exit]:
    """torchrun, at once: ``failed (exitcode: -9) local_rank: 1 (pid: 4711)``."""
    yield Exit(_plain(int(said.fields["code"])), said.line, pid=int(said.fields["pid"]))


def _tasks(said: Signal) -> Iterator[Exit]:
    """Slurm: ``srun: error: node1: tasks 3,5-6: Killed``."""
    what = str(said.fields["what"])
    stated = _CODE.search(what)
    code = _plain(int(stated[1])) if stated else next((code for words, code in _SAID if words.search(what)), None)
    if code is None:
        return
    memory = bool(_SAID[0][0].search(what))
    for rank in _numbers(str(said.fields["tasks"])):
        yield Exit(code, said.line, rank, out_of_memory=memory)


def _mpi(said: Signal) -> Iterator[Exit]:
    """``process rank 3 … exited on signal 9``."""
    if "rank" in said.fields:
        yield Exit(-int(said.fields["signal"]), said.line, int(said.fields["rank"]))


_READERS = {"exit-code": _agent, "slurm-task": _tasks, "mpi-signal": _mpi}


def _plain(code: int) -> int:
    return -(code - _SHELL) if _SHELL < code < _SHELL + 65 else code


def _numbers(text: str) -> Iterator[int]:
    """The numbers in ``3``, ``1,3`` and ``[0-2,5]``."""
    for first, last in re.findall(r"(\d{1,6})(?:-(\d{1,6}))?", text):
        yield from range(int(first), min(int(last or first), int(first) + _MOST_TASKS) + 1)
