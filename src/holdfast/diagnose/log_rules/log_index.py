"""The facts of logs, indexed for the rules, and the order of lines across logs."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property, lru_cache

from holdfast.diagnose.log_rules.process_ranks import ProcessRanks
from holdfast.diagnose.logs import LogFacts, LoggedSignal, LogLine

#: Signals of a harmless line; the line's other signals are ignored.
NOISE_PREFIX = "noise-"
#: Steps after a line from which on the line was no failure.
MIN_STEPS_AFTER = 3
#: A program says at most so many lines after an error that it tries again.
RETRY_LINES = 2
#: Ignored in a line where Ray lists possible reasons of a worker's death, or NCCL's setup fails.
GUESSED = frozenset({"oom-killer", "killed", "segfault", "nccl-truncated"})
#: Reports that a job failed.
FAILURES = ("exit-code", "failed-code", "watchdog-timeout", "segfault", "killed", "terminated")
#: The process is gone, or its allocation failed: only later lines about the same rank, or about a
#: new attempt, show a recovery.
FATAL = frozenset(
    """
    exit-code failed-code process-ended mpi-signal slurm-task segfault bus-error crashed killed
    aborted terminated cuda-out-of-memory
    """.split()
)
#: unittest prints "OK" this many lines after the number of tests at most.
_OK_LINES = 3
#: Exit codes that are no failure of the rank: none, success, and SIGTERM by the launcher.
_HARMLESS_EXIT_CODES = (None, 0, -15)
#: Times up to this one have no date, or count from the host's boot (``logs/lines.py``).
UNDATED_S = 366 * 86400.0
#: The kernel killed a Python process, or it crashed: the kernel does not say which one, so steps of
#: the job show nothing.
_KERNEL_ENDED = re.compile(
    r"Kill(?:ed)? process \d+ \((?:python|pt_|ray::)|(?:^|[\s:])(?:python[\w.]{0,12}|pt_\w{1,13})"
    r"\[\d+\]:? (?:segfault at|trap |general protection)"
)
#: torchrun's folder of an attempt, in the name of a log.
_ATTEMPT = re.compile(r"(?:^|/)attempt_(\d{1,6})/")


class LogIndex:
    """The signals of a set of logs, by name."""

    def __init__(self, facts: LogFacts) -> None:
        self.facts = facts
        noise = {
            position(signal) for signal in facts.signals if signal.name.startswith(NOISE_PREFIX)
        }
        ignored = {
            (one.line.source, one.line.number)
            for one in facts.tracebacks
            if one.notice.startswith("Exception ignored")
        }
        guesses = {position(signal) for signal in facts.signals if signal.name == "guesses"}
        self._by_name: dict[str, list[LoggedSignal]] = {}
        self._cache: dict[tuple[str, ...], list[LoggedSignal]] = {}
        for signal in facts.signals:
            is_guess = signal.name in GUESSED and position(signal) in guesses
            is_ignored = signal.name == "terminated" and position(signal) in ignored
            if position(signal) not in noise and not is_guess and not is_ignored:
                self._by_name.setdefault(signal.name, []).append(signal)

    def all(self, *names: str) -> list[LoggedSignal]:
        """Return the signals with one of these names, in reading order."""
        if names not in self._cache:
            found = [signal for name in names for signal in self._by_name.get(name, ())]
            self._cache[names] = sorted(found, key=lambda signal: signal.order)
        return self._cache[names]

    def first(self, *names: str) -> LoggedSignal | None:
        """Return the first signal with one of these names."""
        return next(iter(self.all(*names)), None)

    def has_any(self, *names: str) -> bool:
        """Return whether there is a signal with one of these names."""
        return any(name in self._by_name for name in names)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def after(self, signal: LoggedSignal, *names: str) -> list[LoggedSignal]:
        """Return the signals with one of these names that come after ``signal``."""
        return [one for one in self.all(*names) if comes_after(one, signal)]

    def may_follow(self, signal: LoggedSignal, *names: str) -> Iterator[LoggedSignal]:
        """Yield the signals with one of these names not known to come before ``signal``."""
        for one in self.all(*names):
            if comes_after(one, signal) or is_later(one.line, signal.line) is None:
                yield one

    def unrecovered(self, *names: str) -> list[LoggedSignal]:
        """Return the signals with one of these names from which the job did not recover."""
        return [signal for signal in self.all(*names) if not self.is_recovered(signal)]

    # ---- ranks

    def ranks(self, *names: str) -> set[int]:
        """Return the ranks whose lines have one of these signals."""
        return {signal.line.rank for signal in self.all(*names) if signal.line.rank is not None}

    @property
    def world_size(self) -> int | None:
        """The largest number of ranks that NCCL or a launcher states; groups state smaller ones."""
        found = (signal.fields for signal in self.all("world-size"))
        sizes = [int(each[key]) for each in found for key in ("world", "members") if key in each]
        return max([self.facts.world_size or 0, *sizes]) or None

    @property
    def first_failed(self) -> int | None:
        """The rank that torchrun lists as the first failure, the earliest over all nodes."""
        candidates = []
        for marker in self.all("root-marker"):
            ranks, times = self.after(marker, "failed-rank"), self.after(marker, "failed-time")
            if ranks:
                time = str(times[0].fields["time"]) if times else ""
                candidates.append((time, ranks[0].order, int(ranks[0].fields["rank"])))
        return min(candidates)[2] if candidates else None

    @property
    def failed_local_rank(self) -> int | None:
        """The local rank that torchrun saw fail; None if there are several, or none."""
        reports = self.all("exit-code", "failed-command")
        local = {int(signal.fields["local_rank"]) for signal in reports}
        return local.pop() if len(local) == 1 else None

    def first_failed_of(self, ranks: Collection[int | None]) -> int | None:
        """Return the rank that torchrun reports first; on one node its local rank in ``ranks``."""
        if self.first_failed is not None:
            return self.first_failed
        failed = self.processes.failed
        if failed is None and self.is_of_one_node:
            failed = self.failed_local_rank
        return failed if failed in ranks else None

    @property
    def is_of_one_node(self) -> bool:
        """Return whether no line shows that the job has several nodes."""
        counts = [one.fields.get("nnodes", 1) for one in self.all("launch-argument")]
        counts += [one.fields.get("machines", 1) for one in self.all("launch-argument")]
        pairs = (one.fields for one in self.all("rank-pair"))
        hosts = max(len(self.facts.hosts), self.processes.host_count)
        return (
            hosts <= 1
            and all(str(one) == "1" for one in counts)
            and all(pair["rank"] == pair["local"] for pair in pairs)
        )

    @property
    def failed_ranks(self) -> set[int]:
        """The ranks that a launcher reports as failed, except those that it terminated."""
        return {
            rank.rank
            for rank in self.facts.ranks.values()
            if rank.exit_code not in _HARMLESS_EXIT_CODES
        }

    @cached_property
    def processes(self) -> ProcessRanks:
        """The ranks of processes, local ranks and hosts."""
        return ProcessRanks(self.facts)

    # ---- recovery

    @cached_property
    def finishes(self) -> list[LoggedSignal]:
        """The lines that report the end of training, not only of a communicator or a job script."""
        return [one for one in self.all("finished") if "vague" not in one.fields]

    @cached_property
    def is_restarted(self) -> bool:
        """An agent saw a process fail and did not give up: it printed no failure table."""
        gave_up = any(one.type.endswith("ChildFailedError") for one in self.facts.tracebacks)
        return "exit-code" in self and "failed-code" not in self and not gave_up

    def is_recovered(self, signal: LoggedSignal) -> bool:
        """Return whether the job progressed or finished after ``signal``, without a later failure.

        If a launcher restarted the ranks, its report of the failure comes first, and the new
        attempt counts.
        """
        ends = (end.line for end in self.finishes)
        if self.is_restarted and any(is_later(end, signal.line) is None for end in ends):
            return True
        restarts = reversed(self.after(signal, "exit-code"))
        begin = next((one for one in restarts if self._progresses_after(one)), signal)
        progresses = self._progresses_after(begin) or (
            signal.name not in FATAL and bool(self.after(begin, "finished"))
        )
        return progresses and all(
            position(one) == position(begin) or self._progresses_after(one)
            for one in self.may_follow(begin, *FAILURES)
        )

    def is_after_end(self, signal: LoggedSignal) -> bool:
        """Return whether training had reported its end before ``signal``, without later steps."""
        ends = [one for one in self.all("finished") if comes_after(signal, one)]
        return bool(ends) and not self.after(ends[-1], "progress", "pace")

    def _progresses_after(self, signal: LoggedSignal) -> bool:
        if is_ended_by_kernel(signal.line):
            return self.finishes_after((signal.line,))
        if signal.name in FATAL:
            steps = 1 if self._is_retried(signal.line) else MIN_STEPS_AFTER
            return self.continues_after(signal.line, steps=steps)
        return len(self.after(signal, "pace", "progress")) >= MIN_STEPS_AFTER

    def _is_retried(self, line: LogLine) -> bool:
        """Return whether the program says next to ``line`` that it tries again."""
        return any(
            one.line.source == line.source and 0 <= one.line.number - line.number <= RETRY_LINES
            for one in self.all("retried")
        )

    def continues_after(self, line: LogLine, *, steps: int) -> bool:
        """Return whether the rank of ``line`` finished, or logged ``steps`` steps, after it.

        A line without a rank stands for every rank. Other ranks alone must both finish and step.
        """
        all_steps = own_steps = 0
        finished = False
        for one in self._progress_after(line):
            ranks = {one.line.rank, line.rank}
            is_own = None in ranks or len(ranks) == 1 or are_different_attempts(one.line, line)
            if one.name == "finished":
                finished = True
                if is_own:
                    return True
            else:
                all_steps += 1
                own_steps += is_own
            if own_steps >= steps or (finished and all_steps >= MIN_STEPS_AFTER):
                return True
        return False

    def finishes_after(self, lines: Iterable[LogLine]) -> bool:
        """Return whether a log reports the end of training after each of ``lines``."""
        return all(
            any(one.name == "finished" for one in self._progress_after(line)) for line in lines
        )

    def are_in_passed_tests(self, lines: Collection[LogLine]) -> bool:
        """Return whether all lines are of runs of tests of which a framework reports success."""
        return bool(lines) and all(
            any(
                source == line.source and begin < line.number < end
                for source, begin, end in self._passed_tests
            )
            for line in lines
        )

    @cached_property
    def _passed_tests(self) -> list[tuple[str, int, int]]:
        """Log, first and last line of each run of tests; unittest prints no first one."""
        found: list[tuple[str, int, int]] = []
        for report in self.all("tests-ok"):
            line = report.line
            name = "tests-begin" if "tests" in report.fields else "tests-ran"
            earlier = [
                one.line.number
                for one in self.all(name)
                if one.line.source == line.source and one.line.number < line.number
            ]
            if name == "tests-begin" and earlier:
                before = max((end for log, _, end in found if log == line.source), default=-1)
                begin = min((one for one in earlier if one > before), default=line.number)
                found.append((line.source, begin, line.number))
            elif earlier and line.number - earlier[-1] <= _OK_LINES:
                found.append((line.source, 0, line.number))
        return found

    def _progress_after(self, line: LogLine) -> Iterator[LoggedSignal]:
        for source, signals in self._progress_by_log.items():
            if source == line.source:
                begin = bisect_right(signals, line.number, key=lambda one: one.line.number)
                yield from signals[begin:]
            elif line.time is not None or are_different_attempts(signals[0].line, line):
                yield from (one for one in signals if is_later(one.line, line))

    @cached_property
    def _progress_by_log(self) -> dict[str, list[LoggedSignal]]:
        """Steps and ends of the training in each log, by line."""
        found: dict[str, list[LoggedSignal]] = {}
        for one in (*self.finishes, *self.all("progress", "pace")):
            found.setdefault(one.line.source, []).append(one)
        for signals in found.values():
            signals.sort(key=lambda one: one.line.number)
        return found


def is_ended_by_kernel(line: LogLine) -> bool:
    """Return whether the kernel reports the end of a Python process."""
    return _KERNEL_ENDED.search(line.text) is not None


def comes_after(one: LoggedSignal, other: LoggedSignal) -> bool:
    """Return whether ``one`` is known to come after ``other``."""
    if position(one) == position(other):
        return one.order > other.order
    return is_later(one.line, other.line) is True


def is_later(line: LogLine, earlier: LogLine) -> bool | None:
    """Return whether ``line`` was written after ``earlier``; None if that is unknown."""
    if line.source == earlier.source:
        return line.number > earlier.number
    if are_different_attempts(line, earlier):
        return (_attempt(line.source) or 0) > (_attempt(earlier.source) or 0)
    if line.time is None or earlier.time is None:
        return None
    is_dated = line.time > UNDATED_S
    return line.time > earlier.time if is_dated == (earlier.time > UNDATED_S) else None


def are_different_attempts(one: LogLine, other: LogLine) -> bool:
    """Return whether the logs' names show that the lines are of two attempts of torchrun."""
    attempts = {_attempt(one.source), _attempt(other.source)}
    return len(attempts) == 2 and None not in attempts


@lru_cache(maxsize=1024)
def _attempt(source: str) -> int | None:
    found = _ATTEMPT.search(source)
    return int(found[1]) if found else None


def position(signal: LoggedSignal) -> tuple[str, int]:
    """Return source and number of the signal's line."""
    return signal.line.source, signal.line.number
