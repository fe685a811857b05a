"""Decide what to do after a failure, from the ledger and the user's options. Pure.

Restarts are bounded: in total, without progress, per fault, and by failures within a time window.
A job that makes progress is always restarted within these bounds, and every applicable remedy is
tried before the job is stopped.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.adjustments import Adjustments
from holdfast.core.failures import JobFailure, PastFailure, RecoveryAction, RecoveryDecision
from holdfast.core.findings import Level
from holdfast.core.text import format_duration, pluralize
from holdfast.launcher.policy import attempts, remedies
from holdfast.launcher.policy.decisions import DO_NOT_REQUEUE, OnHang, RecoveryOptions
from holdfast.launcher.policy.treatments import TRIES, Treatment, select_treatment

#: While remedies are left, restarts without progress may exceed ``max_idle`` by this factor.
IDLE_FACTOR = 4
MAX_BACKOFF_S = 300.0
_HOST_FAULTS = frozenset({Treatment.SUSPECT, Treatment.BAD_HOST})
_WITH_BACKOFF = frozenset({Treatment.AGAIN, Treatment.SUSPECT, Treatment.BAD_HOST, Treatment.CODE})
_ON_HANG = {
    OnHang.REPORT: RecoveryDecision(
        action=RecoveryAction.REPORT, reason="none: --on-hang report leaves the job as it is"
    ),
    OnHang.STOP: RecoveryDecision(action=RecoveryAction.STOP, reason="stop (--on-hang stop)"),
}


def decide(
    now: JobFailure, options: RecoveryOptions, past: Sequence[PastFailure] = ()
) -> RecoveryDecision:
    """Decide about the failure ``now``; ``past`` holds the earlier ones, oldest first."""
    if select_treatment(now) is Treatment.SLOW_HOST and not now.hang and not now.dead:
        return _decide_about_slow_host(now, options, past)
    past = [each for each in past if each.decision.action is not RecoveryAction.REPORT]
    preempted = now.job_state.preempted
    if preempted is not None:  # all ranks have saved; those that still run are terminated
        return RecoveryDecision(
            action=RecoveryAction.STOP,
            status=preempted,
            reason=f"stop: preempted; all ranks saved and exited with status {preempted}",
        )
    if now.hang and options.on_hang is not OnHang.RESTART:
        return _ON_HANG[options.on_hang]
    if exhausted := _exhausted_budget(now, options, past):
        return exhausted
    before = _adjustments_so_far(past, now)
    wanted = remedies.next_adjustments(before, past, now, skip_batches=options.skip_batches)
    idle = attempts.without_progress(past, now)
    new_remedy, can_retry = wanted not in (None, before), wanted is not None
    why = _reason_to_give_up(now, options, idle, new_remedy=new_remedy, can_retry=can_retry)
    if not why:
        return _restart(now, options, past, idle, wanted or before, before)
    return _stop_for_good(why)


def _decide_about_slow_host(
    now: JobFailure, options: RecoveryOptions, past: Sequence[PastFailure]
) -> RecoveryDecision:
    """Report a slow host; exclude it, if allowed, when it is reported again in one generation."""
    host = now.host or "a host"
    reported_before = any(
        each.failure.generation == now.generation
        and each.failure.host_identity == now.host_identity
        and select_treatment(each.failure) is Treatment.SLOW_HOST
        for each in past
    )
    if not options.exclude_stragglers:
        why = f"none: {host} is slow, but --exclude-stragglers is not set"
    elif not reported_before:
        why = f"none yet: {host} will be excluded if it stays slow"
    elif now.generation >= options.max_restarts:
        why = f"none: {host} should be excluded, but --max-restarts allows no further restart"
    elif (node := _excludable_node(now, options)) is None:
        why = f"none: {host} should be excluded, but no other host is available"
    else:
        restart = f"restart {now.generation + 1} of {options.max_restarts}"
        return RecoveryDecision(
            action=RecoveryAction.EXCLUDE,
            reason=f"{restart}; without {host}, which is slow",
            adjustments=_adjustments_so_far(past, now),
            excluded=(host,),
            nodes=(node,),
        )
    return RecoveryDecision(action=RecoveryAction.REPORT, reason=why, suspects=(host,))


def _excludable_node(now: JobFailure, options: RecoveryOptions) -> int | None:
    """Return the node of the faulty rank; None if too few nodes would remain."""
    state = now.job_state
    node = state.nodes.get(now.rank) if now.rank is not None else None
    nodes = len(set(state.nodes.values())) or 1
    return None if nodes + state.waiting - 1 < max(options.min_nodes, 1) else node


def _adjustments_so_far(past: Sequence[PastFailure], now: JobFailure) -> Adjustments:
    """Return what still applies of the adjustments under which the failed generation started."""
    restarts = [each for each in past if each.decision.restarts]
    return remedies.carry_over(remedies.newest_adjustments(restarts), now)


# When to stop


def _exhausted_budget(
    now: JobFailure, options: RecoveryOptions, past: Sequence[PastFailure]
) -> RecoveryDecision | None:
    """Return the decision to stop if ``--max-restarts`` or ``--max-failures`` is used up."""
    if now.generation >= options.max_restarts:
        why = (
            f"all {options.max_restarts} restarts are used"
            if options.max_restarts
            else "--max-restarts allows no restart"
        )
        return RecoveryDecision(
            action=RecoveryAction.STOP, reason=f"stop: {why}{_repetitions(past, now)}"
        )
    failures = attempts.count_failures(past, now, options.window_s)
    if options.max_failures is not None and failures > options.max_failures:
        return _stop_for_good(
            f"{pluralize(failures, 'failure')} within {format_duration(options.window_s)}; "
            f"--max-failures allows {options.max_failures}{_repetitions(past, now)}"
        )
    return None


def _reason_to_give_up(
    now: JobFailure,
    options: RecoveryOptions,
    idle: Sequence[PastFailure],
    *,
    new_remedy: bool,
    can_retry: bool,
) -> str:
    """Return why the job, which made no progress since ``idle``, is stopped; '' to go on."""
    restarts, progress = pluralize(len(idle), "restart"), _describe_progress(idle, now)
    if len(idle) >= IDLE_FACTOR * max(options.max_idle, 1):
        return f"{restarts} without progress{progress}"
    tries, max_tries = len(attempts.with_same_fault(idle, now)), TRIES[select_treatment(now)]
    if not idle or (new_remedy and tries < max_tries):
        return ""
    if not can_retry or tries >= max_tries:
        what = f"{now.cause} recurred {_times(tries)}" if now.cause else restarts
        return f"{what} without progress, and no remedy is left{progress}"
    steps_only = now.job_state.step is not None and not attempts.reports_checkpoints(
        [*(each.failure for each in idle), now]
    )
    # Steps are weaker evidence than checkpoints: a script may count from 0 at every start.
    max_idle = options.max_idle * (2 if steps_only else 1)
    if max_idle and len(idle) >= max_idle:
        return (
            f"{restarts} without a {'later step' if steps_only else 'newer checkpoint'}{progress}"
        )
    return ""


def _stop_for_good(why: str) -> RecoveryDecision:
    return RecoveryDecision(
        action=RecoveryAction.STOP,
        reason=f"stop: {why}; do not requeue (status {DO_NOT_REQUEUE})",
        status=DO_NOT_REQUEUE,
    )


def _describe_progress(idle: Sequence[PastFailure], now: JobFailure) -> str:
    failures = [*(each.failure for each in idle), now]
    saved = [step for each in failures if (step := attempts.newest_checkpoint(each)) is not None]
    if saved:
        return f" (newest checkpoint: step {max(saved)})"
    reached = [step for each in failures if (step := attempts.global_step(each)) is not None]
    return f" (furthest step: {max(reached)})" if reached else " (no step was reached)"


# How to restart


def _restart(
    now: JobFailure,
    options: RecoveryOptions,
    past: Sequence[PastFailure],
    idle: Sequence[PastFailure],
    wanted: Adjustments,
    before: Adjustments,
) -> RecoveryDecision:
    kind, number = select_treatment(now), now.generation + 1
    counted = f"restart {number} of {options.max_restarts}"
    if options.max_failures is not None:
        failures = attempts.count_failures(past, now, options.window_s)
        window = format_duration(options.window_s)
        counted = f"restart {number} (failure {failures} of {options.max_failures} within {window})"
    new_reasons = tuple(reason for reason in wanted.reasons if reason not in before.reasons)
    delay_s = 0.0 if new_reasons else _backoff_s(kind, idle, options)
    decision = RecoveryDecision(
        action=RecoveryAction.RESTART,
        reason=counted + _repetitions(past, now),
        adjustments=before,
        delay_s=delay_s,
    )
    decision = _suspect_or_exclude_host(decision, now, kind, options, past)
    if decision.action is RecoveryAction.EXCLUDE:  # change one thing at a time
        return decision
    if new_reasons:
        reason = "; ".join([decision.reason, *new_reasons])
        return replace(decision, adjustments=wanted, reason=reason)
    in_place = now.job_state.in_place and not now.hang and kind is Treatment.AGAIN
    if in_place and now.dead and not idle:  # without progress since, all ranks start again
        return replace(decision, action=RecoveryAction.REPLACE, ranks=now.dead, delay_s=0.0)
    wait = f"; in {delay_s:g} s" if delay_s else ""
    return replace(decision, adjustments=wanted, reason=f"{decision.reason}{wait}")


def _backoff_s(kind: Treatment, idle: Sequence[PastFailure], options: RecoveryOptions) -> float:
    """Return the pause before the restart; none before the first one without progress."""
    if not idle or kind not in _WITH_BACKOFF:
        return 0.0
    return float(min(options.backoff_s * 2.0 ** min(len(idle) - 1, 16), MAX_BACKOFF_S))


def _suspect_or_exclude_host(
    decision: RecoveryDecision,
    now: JobFailure,
    kind: Treatment,
    options: RecoveryOptions,
    past: Sequence[PastFailure],
) -> RecoveryDecision:
    """Exclude the host if the fault proves it bad or it was suspect before; else suspect it.

    An inconclusive verdict names a host that may be healthy.
    """
    kinds = _HOST_FAULTS | ({Treatment.SLOW_HOST} if options.exclude_stragglers else set())
    if now.host is None or now.level is Level.UNKNOWN or kind not in kinds:
        return decision
    before = attempts.on_same_host(past, now, _HOST_FAULTS)
    if kind is Treatment.SUSPECT and not before:
        several = len(set(now.job_state.nodes.values())) > 1 or now.job_state.waiting
        reason = f"{decision.reason}; {now.host} is suspect" if several else decision.reason
        return replace(decision, suspects=(now.host,), reason=reason)
    node = _excludable_node(now, options)
    if node is None:
        why = f"{now.host} should be excluded, but no other host is available"
        return replace(decision, suspects=(now.host,), reason=f"{decision.reason}; {why}")
    suspected = f", suspect {_times(len(before))} before" if before else ""
    return replace(
        decision,
        action=RecoveryAction.EXCLUDE,
        excluded=(now.host,),
        nodes=(node,),
        reason=f"{decision.reason}; without {now.host}{suspected}",
    )


def _repetitions(past: Sequence[PastFailure], now: JobFailure) -> str:
    """Return a clause with the number of earlier failures with the same fault; '' if none."""
    count = len(attempts.with_same_fault(past, now)) if now.cause else 0
    return f"; the same fault occurred {_times(count)} before" if count else ""


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
