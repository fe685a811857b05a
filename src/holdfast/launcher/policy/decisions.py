"""Options of the recovery policy, and the failure that it is given."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.core.failures import JobFailure, JobState
from holdfast.core.findings import Verdict

#: Exit status if another restart would not help; the same as in NVIDIA's resiliency extension.
DO_NOT_REQUEUE = 93


class OnHang(StrEnum):
    """The user's choice for a hang (``--on-hang``)."""

    REPORT = "report"
    RESTART = "restart"
    STOP = "stop"


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
