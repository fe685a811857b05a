"""What the ledger shows for a failure: the job's progress, and earlier attempts at the fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.core.failures import JobFailure, PastFailure
from holdfast.launcher.policy.decisions import DO_NOT_REQUEUE
from holdfast.launcher.policy.treatments import Treatment, select_treatment

#: Maximum distance of two failures at the same step: ranks are observed in the middle of a step.
_SAME_STEP = 1
#: Treatments whose remedies do not depend on the rank.
_RANK_INDEPENDENT = frozenset(
    {Treatment.MEMORY, Treatment.HOST_MEMORY, Treatment.NUMERICS, Treatment.CHECKPOINT}
)


def global_step(failure: JobFailure) -> int | None:
    """Return the step the job had reached, counted from its first start; None if unknown.

    A script may count from 0 at every start; then the step of the loaded checkpoint is added.
    """
    state = failure.job_state
    if state.step is None:
        return newest_checkpoint(failure)
    counts_from_zero = state.step == state.counted
    return state.step + (state.loaded or 0) if counts_from_zero else state.step


def newest_checkpoint(failure: JobFailure) -> int | None:
    """Return the step of the newest known checkpoint: saved by this start, or loaded by it."""
    state = failure.job_state
    return max((step for step in (state.saved, state.loaded) if step is not None), default=None)


def reports_checkpoints(failures: Sequence[JobFailure]) -> bool:
    """Return whether the job reports its checkpoints."""
    return any(newest_checkpoint(failure) is not None for failure in failures)


def without_progress(past: Sequence[PastFailure], now: JobFailure) -> tuple[PastFailure, ...]:
    """Return the newest failures since which the job made no progress.

    Progress is a newer checkpoint or, if the job reports none, a later step. Failures up to a stop
    with status 93 do not count: a job that is started after one has been changed.
    """
    given_up = [
        count for count, each in enumerate(past, 1) if each.decision.status == DO_NOT_REQUEUE
    ]
    past = past[max(given_up, default=0) :]
    failures = [*(each.failure for each in past), now]
    progress_of = newest_checkpoint if reports_checkpoints(failures) else global_step
    furthest, begun = -1, 0
    for index, failure in enumerate(failures):
        step = progress_of(failure)
        if step is not None and step > furthest:
            furthest, begun = step, index
    return tuple(past[begun:])


def with_same_fault(past: Sequence[PastFailure], now: JobFailure) -> tuple[PastFailure, ...]:
    """Return the failures with the same fault, or one with the same remedies on any rank.

    Two failures without a known cause count as the same fault.
    """
    kind = select_treatment(now)
    any_rank = kind in _RANK_INDEPENDENT
    return tuple(
        each
        for each in past
        if each.failure.fault_identity == now.fault_identity
        or (any_rank and select_treatment(each.failure) is kind)
    )


def at_same_step(past: Sequence[PastFailure], now: JobFailure) -> tuple[PastFailure, ...]:
    """Return the failures at the step of ``now``; without a step if ``now`` has none."""
    step = global_step(now)
    return tuple(each for each in past if _is_near(global_step(each.failure), step))


def on_same_host(
    past: Sequence[PastFailure], now: JobFailure, kinds: frozenset[Treatment]
) -> tuple[PastFailure, ...]:
    """Return the failures of these ``kinds`` whose root was on the host of ``now``."""
    if now.host is None:
        return ()
    return tuple(
        each
        for each in past
        if each.failure.host_identity == now.host_identity
        and select_treatment(each.failure) in kinds
    )


def count_failures(past: Sequence[PastFailure], now: JobFailure, window_s: float) -> int:
    """Return the number of failures in the last ``window_s`` seconds, including ``now``."""
    return 1 + sum(now.at - each.failure.at <= window_s for each in past)


def newest_with_treatment(past: Sequence[PastFailure], kind: Treatment) -> Iterator[JobFailure]:
    """Yield the failures with this treatment, newest first."""
    return (each.failure for each in reversed(past) if select_treatment(each.failure) is kind)


def _is_near(one: int | None, other: int | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= _SAME_STEP
