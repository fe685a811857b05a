"""Jobs ended by the scheduler, by a person, or by the loss of a node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from holdfast.causes.memory.host_oom_killed import HOST_OOM_KILLED
from holdfast.causes.process.peer_lost import PEER_LOST
from holdfast.causes.process.segfault_in_worker import SEGFAULT_IN_WORKER
from holdfast.causes.process.signal_sigterm_preempted import SIGNAL_SIGTERM_PREEMPTED
from holdfast.diagnose.log_rules.candidates import CauseCandidate, candidate_of
from holdfast.diagnose.log_rules.exceptions import is_own_failure
from holdfast.diagnose.log_rules.log_index import (
    MIN_STEPS_AFTER,
    LogIndex,
    comes_after,
    is_later,
)
from holdfast.diagnose.log_rules.rank_inference import task_numbers
from holdfast.diagnose.log_rules.signal_causes import SIGNAL_CAUSES, Tier
from holdfast.diagnose.logs import LoggedSignal


def find_terminations(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield terminations that the scheduler reports, then those that processes report."""
    for signal in index.all("slurm-cancelled"):
        why = str(signal.fields.get("why", "")).strip()
        if _had_finished(index, signal):
            continue
        if "NODE" in why:
            cause, tier = PEER_LOST.name, Tier.OUTSIDE
            message = f"Slurm ended the job because of {why.lower()}"
        elif not why and _has_failed_before(index, signal):
            continue  # Slurm ends the other tasks
        else:
            cause = SIGNAL_SIGTERM_PREEMPTED.name
            # Exceptions during a preemption are echoes; a job at its time limit may have hung.
            tier = Tier.EXCEPTION if "PREEMPT" in why or "REQUEUE" in why else Tier.OUTSIDE
            reason = f" ({why.lower()})" if why else ": it was cancelled"
            message = f"the scheduler ended the job{reason}"
        yield CauseCandidate(cause, tier, 0.9, message, (signal.line,))
    for name in ("node-failure", "time-limit", "preempted", "terminated"):
        signals = index.unrecovered(name)
        if signals and not _had_finished(index, signals[0]):
            found = candidate_of(index, SIGNAL_CAUSES[name], signals)
            # What ranks raise after the notice is an echo.
            raised = [one.line for one in index.facts.tracebacks if is_own_failure(one)]
            is_late = any(is_later(signals[0].line, line) for line in raised)
            is_first = name == "preempted" and bool(raised) and not is_late
            yield replace(found, tier=Tier.EXCEPTION) if is_first else found


def _has_failed_before(index: LogIndex, signal: LoggedSignal) -> bool:
    """Return whether Slurm or torchrun reported the failure of a rank before ``signal``."""
    reports = index.all("slurm-task", "exit-code", "failed-code")
    return any(comes_after(signal, one) and not _is_terminated(one) for one in reports)


def _is_terminated(report: LoggedSignal) -> bool:
    return "Terminated" in str(report.fields.get("what", ""))


def _had_finished(index: LogIndex, signal: LoggedSignal) -> bool:
    """Return whether training had ended before ``signal``, and not by an exception."""
    failed = any(
        is_own_failure(one) and not index.continues_after(one.line, steps=MIN_STEPS_AFTER)
        for one in index.facts.tracebacks
    )
    return index.is_after_end(signal) and not failed


def find_failed_tasks(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield tasks that Slurm reports as failed; their numbers are ranks with one task per rank."""
    has_timeout = "watchdog-timeout" in index
    for signal in index.all("slurm-task"):
        text, host = str(signal.fields["what"]), str(signal.fields["host"])
        task = next(iter(task_numbers(str(signal.fields["tasks"]))), None)
        if "Out Of Memory" in text or "oom" in text.lower():
            cause, tier, confidence = HOST_OOM_KILLED.name, Tier.MACHINE, 0.96
            message = f"Slurm reports that task {task} on {host} ran out of host memory"
        elif text.startswith("Killed") and not has_timeout and task is not None:
            cause, tier, confidence = HOST_OOM_KILLED.name, Tier.CRASH, 0.6
            message = f"task {task} on {host} was killed by SIGKILL"
        elif "Segmentation" in text and not has_timeout:
            cause, tier, confidence = SEGFAULT_IN_WORKER.name, Tier.CRASH, 0.75
            message = f"task {task} on {host} crashed in native code"
        else:
            continue
        yield CauseCandidate(cause, tier, confidence, message, (signal.line,), task, host)
