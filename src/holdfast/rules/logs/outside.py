"""Who ended the job from outside: the scheduler, a person, the loss of a node."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.facts.logs import Signal
from holdfast.rules.logs.exceptions import is_own
from holdfast.rules.logs.heard import Candidate, Heard
from holdfast.rules.logs.meanings import MEANINGS, Tier
from holdfast.rules.logs.plain import candidate, overcome, task_numbers


def ended(heard: Heard) -> Iterable[Candidate]:
    """The scheduler's word first, then what the processes heard."""
    for signal in heard.all("slurm-cancelled"):
        why = str(signal.fields.get("why", "")).strip()
        if "NODE" in why:
            message = f"Slurm ended the job because of {why.lower()}"
            yield Candidate("peer-lost", Tier.OUTSIDE, 0.9, message, (signal.line,))
            continue
        message = "the scheduler ended the job" + (f" ({why.lower()})" if why else ": it was cancelled")
        # What processes say that were being taken away is an echo; a job may have hung up to its time limit.
        tier = Tier.EXCEPTION if "PREEMPT" in why or "REQUEUE" in why else Tier.OUTSIDE
        yield Candidate("signal-sigterm-preempted", tier, 0.9, message, (signal.line,))
    for name in ("node-failure", "time-limit", "preempted", "terminated"):
        signals = [signal for signal in heard.all(name) if not overcome(heard, signal)]
        if signals and not (name == "terminated" and _was_done(heard, signals[0])):
            yield candidate(heard, MEANINGS[name], signals)


def _was_done(heard: Heard, signal: Signal) -> bool:
    """True where the training had said that it was finished, and no step came after that."""
    done = [one for one in heard.all("finished") if one.order < signal.order]
    raised = any(is_own(one) for one in heard.facts.tracebacks)
    return bool(done) and not raised and not heard.after(done[-1], "progress", "pace")


def tasks(heard: Heard) -> Iterable[Candidate]:
    """What Slurm says of single tasks, whose numbers are ranks where each task is one."""
    for signal in heard.all("slurm-task"):
        what, host = str(signal.fields["what"]), str(signal.fields["host"])
        number = rank = next(iter(task_numbers(str(signal.fields["tasks"]))), None)
        if "Out Of Memory" in what or "oom" in what.lower():
            message = f"Slurm says that task {number} on {host} ran out of host memory"
            yield Candidate("host-oom-killed", Tier.MACHINE, 0.96, message, (signal.line,), rank, host)
        elif what.startswith("Killed") and "watchdog-timeout" not in heard and rank is not None:
            message = f"task {number} on {host} was killed by SIGKILL"
            yield Candidate("host-oom-killed", Tier.CRASH, 0.6, message, (signal.line,), rank, host)
        elif "Segmentation" in what and "watchdog-timeout" not in heard:
            message = f"task {number} on {host} crashed in native code"
            yield Candidate("segfault-in-worker", Tier.CRASH, 0.75, message, (signal.line,), rank, host)
