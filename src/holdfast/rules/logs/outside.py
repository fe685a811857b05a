"""Who ended the job from outside: the scheduler, a person, the loss of a node."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.rules.logs.heard import Candidate, Heard
from holdfast.rules.logs.meanings import MEANINGS, Tier
from holdfast.rules.logs.plain import candidate, overcome


def ended(heard: Heard) -> Iterable[Candidate]:
    """The scheduler's word first, then what the processes heard."""
    for signal in heard.all("slurm-cancelled"):
        why = str(signal.fields.get("why", "")).strip()
        if "NODE" in why:
            message = f"Slurm ended the job because of {why.lower()}"
            yield Candidate("peer-lost", Tier.OUTSIDE, 0.9, message, (signal.line,))
            continue
        message = "the scheduler ended the job" + (f" ({why.lower()})" if why else ": it was cancelled")
        yield Candidate("signal-sigterm-preempted", Tier.OUTSIDE, 0.9, message, (signal.line,))
    for name in ("node-failure", "time-limit", "preempted", "terminated"):
        signals = [signal for signal in heard.all(name) if not overcome(heard, signal)]
        if signals:
            yield candidate(heard, MEANINGS[name], signals)


def tasks(heard: Heard) -> Iterable[Candidate]:
    """What Slurm says of single tasks, whose numbers are ranks where each task is one."""
    for signal in heard.all("slurm-task"):
        what, host = str(signal.fields["what"]), str(signal.fields["host"])
        number = rank = next(iter(task_numbers(str(signal.fields["tasks"]))), None)
        if "Out Of Memory" in what or "oom" in what.lower():
            message = f"Slurm says that task {number} on {host} ran out of host memory"
            yield Candidate("host-oom-killed", Tier.MACHINE, 0.95, message, (signal.line,), rank, host)
        elif "Segmentation" in what and "watchdog-timeout" not in heard:
            message = f"task {number} on {host} crashed in native code"
            yield Candidate("segfault-in-worker", Tier.CRASH, 0.75, message, (signal.line,), rank, host)


def task_numbers(tasks: str) -> list[int]:
    """The numbers in ``[0-3,7]``: of a range, its two ends."""
    return [int(number) for number in tasks.strip("[]").replace("-", ",").split(",") if number.isdigit()]
