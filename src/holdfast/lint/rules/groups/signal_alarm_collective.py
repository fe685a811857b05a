"""A collective that a time limit may abort on one rank."""

from __future__ import annotations

from holdfast.causes.sync.rank_skips_collective import RANK_SKIPS_COLLECTIVE
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, describe_operation, short_location


def _message(divergence: Divergence) -> str:
    return (
        f"the time limit set at {short_location(divergence.guard)} may abort "
        f"{describe_operation(divergence)} on one rank; `{divergence.text}` continues there, while "
        "the other ranks still wait"
    )


RULE = Rule(
    name="signal-alarm-collective",
    cause=RANK_SKIPS_COLLECTIVE,
    tier=RuleTier.FAULT,
    what_it_does=(
        "Finds collectives under an alarm whose handler raises, or in a thread whose result is "
        "awaited with a timeout, if the exception is caught: one rank's limit expires first, and "
        "it leaves alone. An uncaught exception ends the rank and is not reported."
    ),
    known_misses="Limits set by a library (timeout_decorator, func_timeout, stopit).",
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
    kinds=("alarm",),
    message=_message,
)
