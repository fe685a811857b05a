"""A check made and judged, in a recorded tree or of what was seen."""

from holdfast.facts.checks import CHECKS
from holdfast.rules.machine import judge


def found(name, place, seen=None):
    """The findings of one check, as (level, cause, message)."""
    check = CHECKS[name]
    claims = judge(check, seen if seen is not None else check.look(place), place, "a", 5.0)
    assert all(claim.evidence and claim.remedies and claim.subject.host == "a" for claim in claims)
    return [(claim.level.value, claim.cause, claim.message) for claim in claims]


def short(name, place, seen=None):
    """The same without messages."""
    return [claim[:2] for claim in found(name, place, seen)]
