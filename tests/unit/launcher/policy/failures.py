"""Failures for policy tests, and decisions about a sequence of failures."""

from msgspec.structs import replace

from holdfast.core.failures import JobFailure, JobState, PastFailure
from holdfast.core.rank_table import StepProblem
from holdfast.launcher.policy import RecoveryOptions, decide

MANY = RecoveryOptions(max_restarts=1000)


def failure(
    cause="rank-killed", *, step=None, saved=None, loaded=None, counted=None, trouble=None, **other
):
    """Return a failure of rank 2 on host b; ``counted`` is 0 if the script continues counting on resume."""
    state = JobState(
        step=step,
        counted=counted if counted is not None else 0,
        saved=saved,
        loaded=loaded,
        trouble=trouble,
        nodes=other.pop("nodes", {0: 0, 2: 1}),
        waiting=other.pop("waiting", 0),
        loaders=other.pop("loaders", None),
        in_place=other.pop("in_place", False),
        preempted=other.pop("preempted", None),
    )
    fields = {
        "at": 1000.0,
        "generation": 0,
        "cause": cause,
        "message": cause,
        "rank": 2,
        "host": "b",
    } | other
    return JobFailure(**fields, job_state=state)


def trouble(what="nan", step=100, first=None, **other):
    return StepProblem(what=what, step=step, first=first or step, last=step, **other)


def raised(message="ValueError: bad sample", **other):
    return failure(
        "python-exception-on-one-rank", message=message, file="train.py", line=41, **other
    )


def decide_all(failures, terms=MANY):
    """Return the decisions about failures in a row, up to the first one that does not restart."""
    past = []
    for number, each in enumerate(failures):
        now = each if each.generation else _numbered(each, number)
        past.append(PastFailure(now, decide(now, terms, past)))
        if not past[-1].decision.restarts:
            break
    return [each.decision for each in past]


def _numbered(each, number):
    return replace(each, generation=number, at=each.at + number)
