"""Failures of a job and the decisions about them, as the ledger of a run keeps them."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.core.adjustments import NO_ADJUSTMENTS, Adjustments
from holdfast.core.findings import Fact, Level
from holdfast.core.rank_table import StepProblem


class RecoveryAction(StrEnum):
    """What the job does after a failure."""

    RESTART = "restart"  #: restart all workers
    EXCLUDE = "exclude"  #: restart all workers without some nodes
    REPLACE = "replace"  #: start only the dead ranks again
    STOP = "stop"
    REPORT = "report"  #: change nothing


class JobState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was observed of the whole job when it failed, besides the verdict.

    ``step`` is the highest step of any rank, ``counted`` the number of steps since this start; if
    both are equal, the script may count from 0 at every start. ``saved`` is the step of the newest
    checkpoint committed since this start, at ``saved_at``; ``loaded`` that of the checkpoint it
    resumed from. ``progressed`` is when a rank last advanced (Unix seconds; None: unknown).
    ``ran_s`` is the run time in seconds. ``hosts`` and ``nodes`` are by rank. ``namesakes``
    identifies the agent of ranks on hosts that share a name. ``waiting`` is the number of standby
    nodes, ``loaders`` the maximum number of data-loader workers of a rank. ``trouble`` is the last
    problem that ``holdfast.loop`` reported. ``preempted`` is the exit status after a scheduler's
    warning. ``in_place``: survivors can accept a replacement rank. ``dead`` ranks ended with a
    status other than 0.
    """

    step: int | None = None
    counted: int = 0
    saved: int | None = None
    saved_at: float | None = None
    loaded: int | None = None
    ran_s: float = 0.0
    progressed: float | None = None
    hosts: dict[int, str] = {}
    nodes: dict[int, int] = {}
    namesakes: dict[int, str] = {}
    waiting: int = 0
    loaders: int | None = None
    trouble: StepProblem | None = None
    preempted: int | None = None
    in_place: bool = False
    dead: tuple[int, ...] = ()


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
