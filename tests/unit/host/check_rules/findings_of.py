"""Run a check in a recorded tree, or take a result, and return the findings of its rule."""

from holdfast.host.check_rules import judge_check
from holdfast.host.checks import CHECKS


def findings_of(name, context, result=None):
    """Return the findings of one check as (level, cause, message)."""
    check = CHECKS[name]
    result = check.run(context) if result is None else result
    findings = judge_check(check, result, context, "a", 5.0)
    assert all(
        finding.evidence and finding.remedies and finding.subject.host == "a"
        for finding in findings
    )
    return [(finding.level.value, finding.cause, finding.message) for finding in findings]


def levels_and_causes(name, context, result=None):
    """Return the findings of one check as (level, cause)."""
    return [finding[:2] for finding in findings_of(name, context, result)]
