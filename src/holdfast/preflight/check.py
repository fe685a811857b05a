"""Run the checks of one host, apply their rules, and combine the results."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from holdfast.core import verdicts
from holdfast.core.exit_status import status_of_findings
from holdfast.core.findings import Fact, Finding, Unknown, Verdict
from holdfast.host.check_rules import judge_check
from holdfast.host.checks import Check, CheckContext, CheckResult, select_checks, unknown_reasons
from holdfast.host.checks.runner import CheckRun, run_checks
from holdfast.report.check_table import CheckLine, CheckState

_MOST_SEVERE_FIRST = (CheckState.ERROR, CheckState.UNKNOWN, CheckState.WARNING, CheckState.NOTE)


class JudgedCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One check of one host with its findings; ``unseen``: why parts of it were not observable."""

    name: str
    host: str
    state: CheckState
    facts: tuple[Fact, ...]
    findings: tuple[Finding, ...]
    unseen: tuple[str, ...]
    elapsed_s: float


class HostReport(msgspec.Struct, frozen=True):
    """All checks of one host, and the verdict."""

    checks: tuple[JudgedCheck, ...]
    verdict: Verdict
    elapsed_s: float

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return the findings of all checks."""
        return tuple(finding for check in self.checks for finding in check.findings)

    @property
    def exit_status(self) -> int:
        """Return 0 OK, 1 errors found, 3 if nothing could be observed."""
        inconclusive = all(check.state is CheckState.UNKNOWN for check in self.checks)
        return status_of_findings(self.findings, inconclusive=inconclusive)


def check_host(
    context: CheckContext, names: Sequence[str] = (), on_check: Callable[[str], None] | None = None
) -> HostReport:
    """Run the named checks, or all, on this host; ``on_check`` gets the name of each as it ends.

    Raises:
        UnknownName: there is no such check.
    """
    begun = time.monotonic()
    on_run = (lambda run: on_check(run.check.name)) if on_check is not None else None
    runs = run_checks(context, select_checks(tuple(names)), on_run)
    checks = judge_checks(runs, context, os.uname().nodename, time.time())
    unseen = tuple(f"{check.name}: {why}" for check in checks for why in check.unseen)
    findings = [finding for check in checks for finding in check.findings]
    return HostReport(
        checks, verdicts.host_verdict(findings, unseen), round(time.monotonic() - begun, 3)
    )


def judge_checks(
    runs: Mapping[str, CheckRun], context: CheckContext, host: str, at: float
) -> tuple[JudgedCheck, ...]:
    """Apply the rules of the checks run on one host."""
    return tuple(_judge_check(run.check, run, context, host, at) for run in runs.values())


def _judge_check(
    check: Check, run: CheckRun, context: CheckContext, host: str, at: float
) -> JudgedCheck:
    result = run.result
    findings: tuple[Finding, ...] = ()
    facts: tuple[Fact, ...] = ()
    if not isinstance(result, Unknown):
        try:
            facts = tuple(
                msgspec.structs.replace(fact, host=host, time=at) for fact in result.facts()
            )
            findings = () if result.absent else judge_check(check, result, context, host, at)
        except Exception as error:  # noqa: BLE001 - one failing rule must not stop the others
            result = Unknown(f"its rules failed: {type(error).__name__}: {error}")
    unseen = tuple(dict.fromkeys(unknown_reasons(result)))
    return JudgedCheck(
        name=check.name,
        host=host,
        state=_state(result, findings, unseen),
        facts=facts,
        findings=findings,
        unseen=unseen,
        elapsed_s=run.elapsed_s,
    )


def _state(
    result: CheckResult | Unknown, findings: Sequence[Finding], unseen: Sequence[str]
) -> CheckState:
    states = {CheckState(finding.level.value) for finding in findings}
    if states:
        return next(state for state in _MOST_SEVERE_FIRST if state in states)
    if unseen:
        return CheckState.UNKNOWN
    return CheckState.ABSENT if not isinstance(result, Unknown) and result.absent else CheckState.OK


def report_lines(checks: Sequence[JudgedCheck]) -> tuple[CheckLine, ...]:
    """Return the checks as lines for the terminal."""
    return tuple(
        CheckLine(check.name, check.host, check.state, _summary(check)) for check in checks
    )


def _summary(check: JudgedCheck) -> str:
    """Return the first finding, else why it is unknown, else the first fact."""
    if check.findings:
        return check.findings[0].message
    if check.unseen:
        return check.unseen[0]
    return (
        check.facts[0].text.removeprefix(f"{check.name.replace('-', ' ')}: ") if check.facts else ""
    )
