"""Failures for tests of the policy, and a job that fails as it is told to until the policy stops it."""

from msgspec.structs import replace

from holdfast.actions.policy import Failure, Past, Scene, Terms, decide
from holdfast.facts.ranks import Trouble

MANY = Terms(restarts=1000)


def failure(cause="rank-killed", *, step=None, saved=None, loaded=None, counted=None, trouble=None, **other):
    """A failure of rank 2 on host b; ``counted`` is 0 where the script counts on after a resume."""
    scene = Scene(
        step=step, counted=counted if counted is not None else 0, saved=saved, loaded=loaded, trouble=trouble,
        nodes=other.pop("nodes", {0: 0, 2: 1}), waiting=other.pop("waiting", 0), loaders=other.pop("loaders", None),
        in_place=other.pop("in_place", False), preempted=other.pop("preempted", None),
    )  # fmt: skip
    given = {"at": 1000.0, "generation": 0, "cause": cause, "message": cause, "rank": 2, "host": "b"} | other
    return Failure(**given, scene=scene)


def trouble(what="nan", step=100, first=None, **other):
    return Trouble(what=what, step=step, first=first or step, last=step, **other)


def raised(message="ValueError: bad sample", **other):
    return failure("python-exception-on-one-rank", message=message, file="train.py", line=41, **other)


def play(failures, terms=MANY):
    """What is decided about one failure after the other; ends with the first that starts nothing again."""
    past = []
    for number, each in enumerate(failures):
        now = each if each.generation else _numbered(each, number)
        past.append(Past(now, decide(now, terms, past)))
        if not past[-1].decision.restarts:
            break
    return [each.decision for each in past]


def _numbered(each, number):
    return replace(each, generation=number, at=each.at + number)
