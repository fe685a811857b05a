"""The adjustments of the next start: from the earlier ones, the failure, and past attempts.

Every sequence of remedies ends; then the functions return None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from holdfast.core.adjustments import NO_ADJUSTMENTS, Adjustments, StepWindow
from holdfast.core.failures import JobFailure, PastFailure
from holdfast.core.text import pluralize
from holdfast.launcher.policy import attempts
from holdfast.launcher.policy.treatments import Treatment, select_treatment

MAX_MICRO_BATCHES = 64
#: Steps until fewer micro-batches are tried again, the factor after each failed trial, and the
#: maximum number of trials.
FEWER_AFTER, FEWER_FACTOR, FEWER_TRIALS = 1000, 4, 3
#: Batches to skip first, and the factor if the fault recurs. Published runs of large models went
#: back 100 steps and skipped 200 to 500 batches (PaLM, arXiv 2204.02311, section 5.1).
SKIP_FIRST, SKIP_FACTOR = 2, 8
#: Numeric faults within this many steps of each other count as one.
NEAR_STEPS = 256
#: Assumed number of data-loader workers if it is unknown.
ASSUMED_LOADER_WORKERS = 4
MAX_SKIP_WINDOWS = 64
MAX_REASONS = 32


def newest_adjustments(past: Sequence[PastFailure]) -> Adjustments:
    """Return the adjustments under which the failed generation started."""
    return past[-1].decision.adjustments if past else NO_ADJUSTMENTS


def carry_over(before: Adjustments, now: JobFailure) -> Adjustments:
    """Return what still applies of the adjustments of the failed generation.

    ``resume_before`` and ``loss_scale`` end with a newer checkpoint, from which the next start
    resumes.
    """
    limit, saved = before.resume_before, now.job_state.saved
    if limit is not None and saved is not None and saved >= limit:
        return replace(before, resume_before=None, loss_scale=1.0)
    return before


def next_adjustments(
    before: Adjustments, past: Sequence[PastFailure], now: JobFailure, *, skip_batches: bool = False
) -> Adjustments | None:
    """Return the adjustments against this failure; None if no remedy is left.

    ``skip_batches`` allows skipping a batch for another reason than an invalid loss.
    """
    kind = select_treatment(now)
    remedy = _REMEDIES.get(kind)
    if remedy is not None:
        return remedy(before, past, now)
    repeated = attempts.at_same_step(attempts.with_same_fault(past, now), now)
    if not repeated:
        return before
    is_code = kind is Treatment.CODE
    skip = skip_batches and (is_code or len(repeated) > 1)
    return _resume_earlier(before, now, is_code=is_code, skip=skip)


def _use_smaller_micro_batches(
    before: Adjustments, past: Sequence[PastFailure], now: JobFailure
) -> Adjustments | None:
    """Double the number of micro-batches; if a trial of fewer failed, postpone the next trial."""
    step, problem, count = attempts.global_step(now), now.job_state.trouble, before.micro_batches
    was_trial = before.fewer_from is not None and step is not None and step >= before.fewer_from
    if problem is not None and problem.micro_batches is not None:
        was_trial = problem.micro_batches < count
    if was_trial and count > 1:
        trials = sum(
            each.decision.adjustments.fewer_from is not None
            and each.decision.adjustments.micro_batches == count
            for each in past
        )
        later = None
        if step is not None and trials <= FEWER_TRIALS:
            later = step + FEWER_AFTER * FEWER_FACTOR**trials
        trial = "fewer are not tried again" if later is None else f"fewer are tried at step {later}"
        return _with_reason(
            replace(before, fewer_from=later),
            f"half as many micro-batches did not fit at step {step}: {count} again; {trial}",
        )
    if count >= MAX_MICRO_BATCHES:
        return None
    reason = (
        f"out of memory{_at(step)}: each rank's batch is split into {2 * count} micro-batches; "
        "the global batch stays the same"
    )
    if count > 1:
        reason += "; activation checkpointing is on if the script supports it"
    return _with_reason(
        replace(
            before,
            micro_batches=2 * count,
            fewer_from=(step or 0) + FEWER_AFTER,
            activation_checkpointing=before.activation_checkpointing or count > 1,
        ),
        reason,
    )


def _use_fewer_loader_workers(
    before: Adjustments, _past: Sequence[PastFailure], now: JobFailure
) -> Adjustments | None:
    """Halve the number of data-loader workers."""
    current = now.job_state.loaders if before.loader_workers is None else before.loader_workers
    if current == 0:
        return None
    workers = (ASSUMED_LOADER_WORKERS if current is None else current) // 2
    return _with_reason(
        replace(before, loader_workers=workers),
        f"out of host memory{_at(attempts.global_step(now))}: at most "
        f"{pluralize(workers, 'worker')} per data loader",
    )


def _rewind_and_skip(
    before: Adjustments, past: Sequence[PastFailure], now: JobFailure
) -> Adjustments | None:
    """Resume before an invalid loss, skip its batches, and halve the loss scale; each time more."""
    earlier = list(attempts.newest_with_treatment(past, Treatment.NUMERICS))
    window = _invalid_steps(now)
    if window is None:
        return None if earlier else replace(before, loss_scale=0.5)
    near = [
        found
        for failure in earlier
        if (found := _invalid_steps(failure)) is not None
        and abs(found.last - window.last) <= NEAR_STEPS
    ]
    width = SKIP_FIRST * SKIP_FACTOR ** min(len(near), 4)
    first = max(0, min(each.first for each in (window, *near)) + 1 - width)
    resume_before = max(first, 1)
    problem = now.job_state.trouble
    what = problem.what if problem is not None else now.cause
    scale = max(before.loss_scale / 2, 2**-16)
    return _with_reason(
        _with_skip(
            replace(before, resume_before=resume_before, loss_scale=scale),
            StepWindow(first, window.last),
        ),
        f"{what} in the loss at step {window.last}: resume from a checkpoint before step "
        f"{resume_before}, skip the batches of steps {first} to {window.last}, and halve the loss "
        "scale",
    )


def _invalid_steps(failure: JobFailure) -> StepWindow | None:
    """Return the steps with an invalid loss; None if unknown."""
    problem, step = failure.job_state.trouble, attempts.global_step(failure)
    if problem is not None:
        return StepWindow(max(min(problem.first, problem.last), 0), max(problem.last, 0))
    return None if step is None else StepWindow(step, step)


def _use_older_checkpoint(
    before: Adjustments, _past: Sequence[PastFailure], now: JobFailure
) -> Adjustments | None:
    """Resume from a checkpoint before the one that was loaded."""
    state = now.job_state
    loaded = state.saved if state.loaded is None else state.loaded
    if not loaded:
        return before
    why = f"{now.cause}: resume from a checkpoint before step {loaded}"
    return _with_reason(replace(before, resume_before=loaded), why)


def _resume_earlier(
    before: Adjustments, now: JobFailure, *, is_code: bool, skip: bool
) -> Adjustments | None:
    """Resume from an older checkpoint, as the fault recurred at its step; ``skip`` its batch."""
    saved, step = attempts.newest_checkpoint(now), attempts.global_step(now)
    if step is None or saved is None or not (saved or skip):
        return None if is_code else before
    if skip and before.skips(step):
        return None  # tried already
    wanted = replace(before, resume_before=saved) if saved else before
    reason = f"{now.cause} at step {step} again: resume from a checkpoint before step {saved}"
    if not skip:
        return _with_reason(wanted, reason)
    return _with_reason(
        _with_skip(wanted, StepWindow(step, step)), f"{reason}, and skip that batch"
    )


def _with_skip(before: Adjustments, window: StepWindow) -> Adjustments:
    """Return the adjustments with one more window, which replaces those it covers."""
    others = tuple(
        each
        for each in before.skip
        if not (window.first <= each.first and each.last <= window.last)
    )
    return replace(before, skip=(*others, window)[-MAX_SKIP_WINDOWS:])


def _with_reason(adjustments: Adjustments, reason: str) -> Adjustments:
    return replace(adjustments, reasons=(*adjustments.reasons, reason)[-MAX_REASONS:])


def _at(step: int | None) -> str:
    return "" if step is None else f" at step {step}"


_REMEDIES: Mapping[
    Treatment, Callable[[Adjustments, Sequence[PastFailure], JobFailure], Adjustments | None]
] = {
    Treatment.MEMORY: _use_smaller_micro_batches,
    Treatment.HOST_MEMORY: _use_fewer_loader_workers,
    Treatment.NUMERICS: _rewind_and_skip,
    Treatment.CHECKPOINT: _use_older_checkpoint,
}
