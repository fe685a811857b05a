"""Exit statuses as launchers report them: the last resort if no line states a reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from holdfast.causes.process.exit_nonzero import EXIT_NONZERO
from holdfast.causes.process.python_exception_all_ranks import PYTHON_EXCEPTION_ALL_RANKS
from holdfast.causes.process.python_exception_on_one_rank import PYTHON_EXCEPTION_ON_ONE_RANK
from holdfast.diagnose.log_rules.candidates import CauseCandidate, candidate_of, lines_of
from holdfast.diagnose.log_rules.log_index import LogIndex
from holdfast.diagnose.log_rules.rank_inference import WAITER_SIGNALS, find_rank, task_numbers
from holdfast.diagnose.log_rules.signal_causes import SIGNAL_CAUSES, Tier
from holdfast.diagnose.logs import LoggedSignal

#: Unix signals that end a process -> log signal.
_BY_SIGNAL = {
    1: "terminated",
    2: "terminated",
    4: "crashed",
    5: "crashed",
    6: "aborted",
    7: "bus-error",
    8: "crashed",
    9: "killed",
    11: "segfault",
    15: "terminated",
    31: "crashed",
}
#: A shell reports 128 plus the number of the signal.
_SHELL_OFFSET, _LAST_SIGNAL = 128, 64
_SIGTERM = 15
#: Slurm's text about a task that exited with an error.
_TASK_FAILED = re.compile(r"Exited with exit code [1-9]")


def find_failed_exits(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield processes ended by a signal, or with a code, as Python does after an exception."""
    if "watchdog-timeout" in index:
        return  # torch aborted them
    reports = index.unrecovered("process-ended", "mpi-signal", "failed-code")
    ends = [(code, signal) for signal in reports if (code := _exit_code(signal))]
    listed = {_signal_number(code) for code, signal in ends if signal.name == "failed-code"}
    for number in sorted({_signal_number(code) for code, _ in ends} - {0}):
        # torchrun's table also lists the processes that it terminated itself.
        is_launchers = number == _SIGTERM and len(listed) > 1
        signals = [
            signal
            for code, signal in ends
            if _signal_number(code) == number
            and not (is_launchers and signal.name == "failed-code")
        ]
        if signals:
            name = _BY_SIGNAL.get(number, "other-signal")
            yield candidate_of(index, SIGNAL_CAUSES[name], signals)
    yield from _find_silent_rank(index)
    by_code = [signal for code, signal in ends if not _signal_number(code)]
    table = [signal for signal in by_code if signal.name == "failed-code"]
    others = [signal for signal in by_code if signal.name != "failed-code"]
    tasks = [
        signal
        for signal in index.all("slurm-task")
        if _TASK_FAILED.search(str(signal.fields["what"]))
    ]
    if failed := [*table, *tasks, *others]:
        yield _candidate_by_code(index, failed)


def _find_silent_rank(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield the only rank in the failure table that logs no lost peer: the others lost it."""
    waiting = index.ranks(*WAITER_SIGNALS)
    silent = sorted(index.failed_ranks - waiting)
    if not waiting or len(silent) != 1:
        return
    entry = index.facts.ranks[silent[0]]
    rank, code = entry.rank, entry.exit_code or 0
    lines = lines_of([one for one in index.all("failed-rank") if one.fields["rank"] == rank])
    if -code in _BY_SIGNAL:
        meaning = SIGNAL_CAUSES[_BY_SIGNAL[-code]]
        cause, confidence, message = meaning.cause, 0.6, f"rank {rank}: {meaning.sentence}"
    elif code > 0:  # Python exits with 1 after an exception
        cause = EXIT_NONZERO.name if code > 1 else PYTHON_EXCEPTION_ON_ONE_RANK.name
        confidence = 0.55
        message = f"rank {rank} exited with code {code}, and the other ranks lost it"
    else:
        return
    yield CauseCandidate(cause, Tier.CRASH, confidence, message, lines, rank, entry.host)


def _exit_code(signal: LoggedSignal) -> int | None:
    """Return the exit code in a line, negative for a signal; None without one."""
    number = signal.fields.get("signal")
    if isinstance(number, int):
        return -number
    code = signal.fields.get("code", signal.fields.get("ended"))
    return code if isinstance(code, int) else None


def _signal_number(code: int) -> int:
    """Return the signal that an exit code encodes; 0 for a code that the process chose."""
    number = code - _SHELL_OFFSET if code > 0 else -code
    return number if 0 < number <= _LAST_SIGNAL else 0


def _candidate_by_code(index: LogIndex, signals: Sequence[LoggedSignal]) -> CauseCandidate:
    """Return an exception as the likeliest reason; its text is not in the logs."""
    tasks = [
        task for signal in signals for task in task_numbers(str(signal.fields.get("tasks", "")))
    ]
    several = len(index.failed_ranks) > 1 or len(tasks) > 1
    cause = PYTHON_EXCEPTION_ALL_RANKS if several else PYTHON_EXCEPTION_ON_ONE_RANK
    rank = tasks[0] if tasks else find_rank(index, signals)
    who = "several ranks" if several else f"rank {rank}" if rank is not None else "a process"
    message = f"{who} exited with an error code"
    lines = lines_of(signals)
    return CauseCandidate(cause.name, Tier.SILENCE, 0.35, message, lines, rank, guess=True)
