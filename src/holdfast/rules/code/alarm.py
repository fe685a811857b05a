"""A collective that a limit of time may end on one rank."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, operation, short


def _wants(parting: Parting) -> bool:
    return parting.kind == "alarm"


def _says(parting: Parting) -> str:
    return (
        f"the limit of time set at {short(parting.guard)} may end {operation(parting)} on one rank; "
        f"`{parting.text}` goes on there, while the others still wait in it"
    )


RULE = Rule(
    name="signal-alarm-collective",
    cause=by_name("rank-skips-collective"),
    tier=Tier.FAULT,
    what_it_does="Finds collectives under an alarm whose handler raises, or in a thread whose result is waited for "
    "with a time-out, where the exception is caught: the clock of one rank runs out first, and it leaves alone. An "
    "exception that nobody catches ends the rank, and is fine.",
    known_misses="Limits that a library sets (timeout_decorator, func_timeout, stopit).",
    bad="""\
import signal


def late(signum, frame):
    raise TimeoutError


def evaluate(scores):
    signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    try:
        dist.all_reduce(scores)  # found
    except TimeoutError:
        return None
    finally:
        signal.alarm(0)
    return scores
""",
    good="""\
import signal


def late(signum, frame):
    raise TimeoutError


def judged(answer):
    signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    try:
        return float(answer())
    except TimeoutError:
        return 0.0
    finally:
        signal.alarm(0)


def evaluate(answers):
    scores = torch.tensor([judged(answer) for answer in answers])
    dist.all_reduce(scores)
    return scores
""",
    wants=_wants,
    says=_says,
)
