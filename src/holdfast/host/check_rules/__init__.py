"""Pure rules over the results of the checks of one host: one module per check, named alike.

Each has ``judge(result, context)``, which yields findings. Unknown values yield no finding: the
caller reports them separately (:func:`holdfast.host.checks.unknown_reasons`), so that they never
count as healthy.
"""

from __future__ import annotations

from importlib import import_module

from msgspec.structs import replace

from holdfast.core.findings import Finding
from holdfast.host.checks import Check, CheckContext, CheckResult


def judge_check(
    check: Check, result: CheckResult, context: CheckContext, host: str, time: float | None = None
) -> tuple[Finding, ...]:
    """Return the findings of the check's rule.

    Findings and their evidence get ``host`` and ``time``.
    """
    findings: tuple[Finding, ...] = tuple(
        import_module(f"{__name__}.{check.module}").judge(result, context)
    )
    return tuple(_with_host(host, time, finding) for finding in findings)


def _with_host(host: str, time: float | None, finding: Finding) -> Finding:
    evidence = tuple(
        replace(fact, host=fact.host or host, time=fact.time or time) for fact in finding.evidence
    )
    subject = replace(finding.subject, host=finding.subject.host or host)
    return replace(finding, subject=subject, evidence=evidence)
