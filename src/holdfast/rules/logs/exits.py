"""How processes ended, as those who started them tell: the last thing to go by where nobody gave a reason."""

from __future__ import annotations

import re
from collections.abc import Iterable

from holdfast.facts.logs import Signal
from holdfast.rules.logs.heard import Candidate, Heard
from holdfast.rules.logs.meanings import MEANINGS, Tier
from holdfast.rules.logs.plain import OF_WAITERS, candidate, overcome, rank_of, task_numbers

#: Signals of Unix that end a process, and what is said where one did; a shell adds 128 to their number.
_BY_SIGNAL = {6: "aborted", 7: "bus-error", 9: "killed", 11: "segfault", 15: "terminated"}
_SHELL = 128
#: What Slurm says of a task that ended by itself, and badly.
_CODE = re.compile(r"Exited with exit code [1-9]")


def ended(heard: Heard) -> Iterable[Candidate]:
    """By a signal, each of which mostly has one reason; or with a code, as Python does after an exception."""
    if "watchdog-timeout" in heard:
        return  # torch ended them itself
    told = [(code, signal) for signal in heard.all("process-ended") if (code := _code(signal)) is not None]
    told = [(code, signal) for code, signal in told if not overcome(heard, signal)]
    for number, name in _BY_SIGNAL.items():
        signals = [signal for code, signal in told if code in (-number, _SHELL + number)]
        if signals:
            yield candidate(heard, MEANINGS[name], signals)
    yield from _alone(heard)
    codes = [signal for code, signal in told if 0 < code < _SHELL]
    table = [signal for signal in heard.all("failed-code") if 0 < int(signal.fields["code"]) < _SHELL]
    tasks = [signal for signal in heard.all("slurm-task") if _CODE.search(str(signal.fields["what"]))]
    if codes or table or tasks:
        yield _by_code(heard, [*table, *tasks, *codes])


def _alone(heard: Heard) -> Iterable[Candidate]:
    """The one rank in the launcher's table that does not complain of a peer: the others complain of it."""
    waited = heard.ranks(*OF_WAITERS)
    own = [one for one in heard.facts.ranks.values() if one.exit_code not in (None, 0, -15) and one.rank not in waited]
    if not waited or len(own) != 1:
        return
    rank, code = own[0].rank, own[0].exit_code or 0
    lines = tuple(signal.line for signal in heard.all("failed-rank") if signal.fields["rank"] == rank)
    if -code in _BY_SIGNAL:
        meaning = MEANINGS[_BY_SIGNAL[-code]]
        yield Candidate(meaning.cause, Tier.CRASH, 0.6, f"rank {rank}: {meaning.sentence}", lines, rank, own[0].host)
    elif code > 0:
        # Python itself ends with 1 after an exception.
        cause = "exit-nonzero" if code > 1 else "python-exception-on-one-rank"
        message = f"rank {rank} ended with exit code {code}, and the others lost it"
        yield Candidate(cause, Tier.CRASH, 0.55, message, lines, rank, own[0].host)


def _code(signal: Signal) -> int | None:
    said = signal.fields.get("code", signal.fields.get("ended"))
    return said if isinstance(said, int) else None


def _by_code(heard: Heard, signals: list[Signal]) -> Candidate:
    """An exception is likeliest, and its text is not in these logs."""
    tasks = [task for signal in signals for task in task_numbers(str(signal.fields.get("tasks", "")))]
    several = len(heard.failed_ranks) > 1 or len(tasks) > 1
    cause = "python-exception-all-ranks" if several else "python-exception-on-one-rank"
    rank = tasks[0] if tasks else rank_of(heard, signals)
    who = "several ranks" if several else f"rank {rank}" if rank is not None else "a process"
    message = f"{who} ended with an exit code of its own, as after an exception; its text is not in these logs"
    return Candidate(cause, Tier.SILENCE, 0.35, message, tuple(signal.line for signal in signals), rank)
