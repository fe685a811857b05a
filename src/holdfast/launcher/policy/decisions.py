"""Data of the recovery policy, stored in the ledger: failures, options and decisions."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.core.adjustments import NO_ADJUSTMENTS, Adjustments
from holdfast.core.findings import Fact, Level, Verdict
from holdfast.watcher.job_state import JobState

#: Exit status if another restart would not help; the same as in NVIDIA's resiliency extension.
DO_NOT_REQUEUE = 93


class OnHang(StrEnum):
    """The user's choice for a hang (``--on-hang``)."""

    REPORT = "report"
    RESTART = "restart"
    STOP = "stop"


class RecoveryAction(StrEnum):
    """What the job does after a failure."""

    RESTART = "restart"  #: restart all workers
    EXCLUDE = "exclude"  #: restart all workers without some nodes
    REPLACE = "replace"  #: start only the dead ranks again
    STOP = "stop"
    REPORT = "report"  #: change nothing


class RecoveryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user allows.

    ``max_restarts`` limits all restarts, ``max_failures`` the failures within ``window_s`` (None:
    no limit), ``max_idle`` the restarts in a row without progress. ``backoff_s`` is the pause
    before the second restart in a row; it doubles for each later one. Hosts can be excluded while
    ``min_nodes`` remain. ``skip_batches`` allows skipping a batch at which the same exception or
    crash recurred, not only one with an invalid loss.
    """

    on_hang: OnHang = OnHang.RESTART
    max_restarts: int = 0
    max_failures: int | None = None
    window_s: float = 3600.0
    max_idle: int = 3
    backoff_s: float = 1.0
    exclude_stragglers: bool = False
    skip_batches: bool = False
    min_nodes: int = 1


class JobFailure(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"job_state": "scene"}
):
    """A failure of generation ``generation`` at ``at`` (Unix seconds), with its verdict's root.

    ``cause`` is empty if there was no verdict. ``dead`` are the ranks with a non-zero exit status.
    """

    at: float
    generation: int
    hang: bool = False
    code: str = ""
    cause: str = ""
    level: Level = Level.ERROR
    message: str = ""
    rank: int | None = None
    host: str | None = None
    file: str | None = None
    line: int | None = None
    evidence: tuple[Fact, ...] = ()
    dead: tuple[int, ...] = ()
    job_state: JobState = JobState()

    @property
    def host_identity(self) -> tuple[str | None, str]:
        """Return what identifies the host: its name, and its agent if hosts share the name."""
        agent = "" if self.rank is None else self.job_state.namesakes.get(self.rank, "")
        return self.host, agent

    @property
    def fault_identity(self) -> tuple[object, ...]:
        """Return what identifies the fault: the cause with its line, or else with host and rank.

        An exception on one rank and on all ranks is one fault: which of them is observed is a
        matter of milliseconds.
        """
        cause = "exception" if self.cause.startswith("python-exception-") else self.cause
        return (cause, self.file, self.line) if self.file else (cause, self.host, self.rank)


class RecoveryDecision(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"action": "course"}
):
    """The action and its reason in a few words.

    ``adjustments`` apply to the next start. The ``excluded`` hosts, which are ``nodes`` of this
    generation, do not join again; ``suspects`` are hosts to exclude if they fail again. REPLACE
    starts only ``ranks``. The restart waits ``delay_s``. ``status`` is the exit status of a job
    that stops; None: torchrun's.
    """

    action: RecoveryAction
    reason: str
    adjustments: Adjustments = NO_ADJUSTMENTS
    excluded: tuple[str, ...] = ()
    nodes: tuple[int, ...] = ()
    suspects: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    delay_s: float = 0.0
    status: int | None = None

    @property
    def restarts(self) -> bool:
        """Return whether the job continues with new processes."""
        return self.action not in (RecoveryAction.STOP, RecoveryAction.REPORT)


class PastFailure(msgspec.Struct, frozen=True):
    """A failure and the decision about it."""

    failure: JobFailure
    decision: RecoveryDecision


def build_failure(
    verdict: Verdict | None,
    *,
    at: float,
    generation: int,
    hang: bool = False,
    dead: tuple[int, ...] = (),
    job_state: JobState | None = None,
) -> JobFailure:
    """Build the failure from its verdict; None: the watcher returned none."""
    state = job_state or JobState()
    failure = JobFailure(
        at=at,
        generation=generation,
        hang=hang,
        dead=tuple(sorted({*dead, *state.dead})),
        job_state=state,
    )
    root = verdict.root if verdict is not None else None
    if root is None:
        return failure
    subject = root.subject
    host = subject.host or (state.hosts.get(subject.rank) if subject.rank is not None else None)
    return msgspec.structs.replace(
        failure,
        code=root.code,
        cause=root.cause,
        level=root.level,
        message=root.message,
        rank=subject.rank,
        host=host,
        file=subject.file,
        line=subject.line,
        evidence=root.evidence,
    )
