"""What to do after a failure: the ledger and what the user allows in, one decision out. Pure.

A job never restarts for ever: starts are bounded by the restarts in all, by those without progress, by those for one
fault, and by the failures within a window. It never stops while a sensible restart is left: a job that gets further is
started again whatever befell it, and a remedy that has not been tried is tried.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.actions.policy import past as history
from holdfast.actions.policy import remedies
from holdfast.actions.policy.decisions import DO_NOT_REQUEUE, Course, Decision, Failure, OnHang, Past, Terms
from holdfast.actions.policy.treatments import TRIES, Treatment, treatment
from holdfast.adjustments import Adjustments
from holdfast.report.text import duration, plural

#: Without progress, so many times the allowed restarts at most, whatever else could be tried.
HARD = 4
MOST_BACKOFF_S = 300.0
_HOSTS_FAULT = frozenset({Treatment.SUSPECT, Treatment.BAD_HOST})
_WAITS = frozenset({Treatment.AGAIN, Treatment.SUSPECT, Treatment.BAD_HOST, Treatment.CODE})


def decide(now: Failure, terms: Terms, past: Sequence[Past] = ()) -> Decision:
    """Decide about the failure ``now``; ``past`` holds those before it, oldest first."""
    kind = treatment(now)
    if kind is Treatment.SLOW_HOST and not now.hang and not now.dead:
        return _merely_slow(now, terms, past)
    past = [each for each in past if each.decision.course is not Course.REPORT]  # which changed nothing
    if now.scene.preempted is not None:  # all that counts is saved: who does not come to its end is ended
        return Decision(course=Course.STOP, status=now.scene.preempted, reason="stop: the scheduler asked for it; all "
                        f"ranks saved and left with status {now.scene.preempted}")  # fmt: skip
    if now.hang and terms.on_hang is not OnHang.RESTART:
        return _users_choice(terms)
    spent = _spent(now, terms, past)
    if spent is not None:
        return spent
    before = remedies.carried(remedies.latest(_with_adjustments(past)), now)
    wanted = remedies.remedy(before, past, now, skips=terms.skip_batches)
    idle = history.since_progress(past, now)
    stopped = _stopped(now, terms, idle, helps=wanted is not None and wanted != before, left=wanted is not None)
    if stopped is not None:
        return stopped
    return _restart(now, terms, past, idle, wanted if wanted is not None else before, before)


def _users_choice(terms: Terms) -> Decision:
    if terms.on_hang is OnHang.REPORT:
        return Decision(course=Course.REPORT, reason="none, as --on-hang report says: the job is left as it is")
    return Decision(course=Course.STOP, reason="stop, as --on-hang stop says")


def _merely_slow(now: Failure, terms: Terms, past: Sequence[Past]) -> Decision:
    """Nothing failed, and a slow host never ends a job: it is told, and at the second time left out where that helps.

    The second time is another window of time within the same start of the workers.
    """
    host = now.host or "a host"
    warned = any(
        each.failure.generation == now.generation and each.failure.machine == now.machine
        and treatment(each.failure) is Treatment.SLOW_HOST for each in past
    )  # fmt: skip
    if not terms.exclude_stragglers:
        why = f"none: {host} is slow, and --exclude-stragglers is not set"
    elif not warned:
        why = f"none yet: {host} is left out if it stays slow"
    elif now.generation >= terms.restarts:
        why = f"none: {host} should be left out, and --max-restarts allows no further restart"
    elif (node := _spared_node(now, terms)) is None:
        why = f"none: {host} should be left out, and no other host stands by"
    else:
        before = remedies.carried(remedies.latest(_with_adjustments(past)), now)
        return Decision(
            course=Course.EXCLUDE, reason=f"restart {now.generation + 1} of {terms.restarts}; without {host}, which "
            "is slow", adjustments=before, excluded=(host,), nodes=(node,),
        )  # fmt: skip
    return Decision(course=Course.REPORT, reason=why, suspects=(host,))


def _spared_node(now: Failure, terms: Terms) -> int | None:
    """The node of the rank at fault; None where the job cannot do without it."""
    node = now.scene.nodes.get(now.rank) if now.rank is not None else None
    here = len(set(now.scene.nodes.values())) or 1
    return None if here + now.scene.waiting - 1 < max(terms.least_nodes, 1) else node


def _with_adjustments(past: Sequence[Past]) -> tuple[Past, ...]:
    """Those after which workers were started again: what was only told changed nothing."""
    return tuple(each for each in past if each.decision.restarts)


# ---- when to stop


def _spent(now: Failure, terms: Terms, past: Sequence[Past]) -> Decision | None:
    """What the user allows is used up."""
    if now.generation >= terms.restarts:
        why = f"all {terms.restarts} restarts are used" if terms.restarts else "--max-restarts allows no restart"
        return Decision(course=Course.STOP, reason=f"stop: {why}{_again(past, now)}")
    failures = history.within(past, now, terms.window_s)
    if terms.failures is not None and failures > terms.failures:
        why = f"{plural(failures, 'failure')} within {duration(terms.window_s)}, and --max-failures allows "
        return _stop(f"{why}{terms.failures}{_again(past, now)}")
    return None


def _stopped(now: Failure, terms: Terms, idle: Sequence[Past], *, helps: bool, left: bool) -> Decision | None:
    """The job gets no further. ``helps``: something else can be tried; ``left``: the same may be tried again."""
    kind = treatment(now)
    if len(idle) >= HARD * max(terms.without_progress, 1):
        return _stop(f"{plural(len(idle), 'restart')} brought the job no further{_progress(idle, now)}")
    tries = history.same_fault(idle, now)
    if not idle or (helps and len(tries) < TRIES[kind]):
        return None
    if not left or len(tries) >= TRIES[kind]:
        what = f"{now.cause} came back {_times(len(tries))}" if now.cause else f"{plural(len(tries), 'restart')}"
        return _stop(f"{what} without progress, and nothing is left to be tried{_progress(idle, now)}")
    doubt = not history.knows_checkpoints([*(each.failure for each in idle), now]) and now.scene.step is not None
    most = terms.without_progress * (2 if doubt else 1)
    if len(idle) >= most and terms.without_progress:
        return _stop(f"{plural(len(idle), 'restart')} without {'a later step' if doubt else 'a newer checkpoint'}"
                     f"{_progress(idle, now)}")  # fmt: skip
    return None


def _stop(why: str) -> Decision:
    return Decision(course=Course.STOP, reason=f"stop: {why}; do not requeue (status {DO_NOT_REQUEUE})",
                    status=DO_NOT_REQUEUE)  # fmt: skip


def _progress(idle: Sequence[Past], now: Failure) -> str:
    failures = [*(each.failure for each in idle), now]
    saves = [step for each in failures if (step := history.saved(each)) is not None]
    steps = [step for each in failures if (step := history.position(each)) is not None]
    if saves:
        return f" (the newest checkpoint is of step {max(saves)})"
    return f" (the furthest step is {max(steps)})" if steps else " (no step was reached)"


# ---- how to go on


def _restart(
    now: Failure, terms: Terms, past: Sequence[Past], idle: Sequence[Past], wanted: Adjustments, before: Adjustments
) -> Decision:
    kind = treatment(now)
    number = now.generation + 1
    counted = f"restart {number} of {terms.restarts}"
    if terms.failures is not None:
        inside = history.within(past, now, terms.window_s)
        counted = f"restart {number} (failure {inside} of {terms.failures} within {duration(terms.window_s)})"
    new = tuple(reason for reason in wanted.reasons if reason not in before.reasons)
    delay_s = 0.0 if new else _delay(kind, idle, terms)
    decision = Decision(
        course=Course.RESTART, reason=counted + _again(past, now), adjustments=before, delay_s=delay_s
    )  # fmt: skip
    decision = _about_hosts(decision, now, kind, terms, past)
    if decision.course is Course.EXCLUDE:  # before anything else is changed
        return decision
    if new:
        return replace(decision, adjustments=wanted, reason="; ".join([decision.reason, *new]))
    replaced = _replaced(now, kind, idle)
    if replaced:
        return replace(decision, course=Course.REPLACE, ranks=replaced, delay_s=0.0)
    wait = f"; in {delay_s:g} s" if delay_s else ""
    return replace(decision, adjustments=wanted, reason=f"{decision.reason}{wait}")


def _delay(kind: Treatment, idle: Sequence[Past], terms: Terms) -> float:
    """Nothing before the first restart in a row; then longer each time."""
    if not idle or kind not in _WAITS:
        return 0.0
    return float(min(terms.backoff_s * 2.0 ** min(len(idle) - 1, 16), MOST_BACKOFF_S))


def _replaced(now: Failure, kind: Treatment, idle: Sequence[Past]) -> tuple[int, ...]:
    """The ranks to start again among the survivors; at the second time without progress all start afresh."""
    if now.hang or not now.scene.in_place or kind is not Treatment.AGAIN or idle:
        return ()
    return now.dead


def _about_hosts(
    decision: Decision, now: Failure, kind: Treatment, terms: Terms, past: Sequence[Past]
) -> Decision:  # fmt: skip
    """Suspect the host, or leave it out: at once where it is proven bad, at the second time where it is suspect."""
    told_to = _HOSTS_FAULT | ({Treatment.SLOW_HOST} if terms.exclude_stragglers else set())
    if now.host is None or kind not in told_to:
        return decision
    before = history.on_host(past, now, _HOSTS_FAULT)
    blamed = kind in (Treatment.BAD_HOST, Treatment.SLOW_HOST) or bool(before)
    if not blamed:
        others = len(set(now.scene.nodes.values())) > 1 or now.scene.waiting
        reason = f"{decision.reason}; {now.host} is suspect" if others else decision.reason
        return replace(decision, suspects=(now.host,), reason=reason)
    node = _spared_node(now, terms)
    if node is None:
        why = f"{now.host} should be left out, and no other host stands by"
        return replace(decision, suspects=(now.host,), reason=f"{decision.reason}; {why}")
    return replace(
        decision, course=Course.EXCLUDE, excluded=(now.host,), nodes=(node,),
        reason=f"{decision.reason}; without {now.host}" + (f", suspect {_times(len(before))} before" if before else ""),
    )  # fmt: skip


def _again(past: Sequence[Past], now: Failure) -> str:
    """Says so where the same thing happened before."""
    count = len(history.same_fault(past, now)) if now.cause else 0
    return f"; the same happened {_times(count)} before" if count else ""


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
