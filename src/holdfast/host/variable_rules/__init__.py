"""Pure rules over environment variables.

unread          variables that nothing reads, misspelled or renamed ones
invalid_values  values that the reader rejects, ignores or misparses
harmful         valid values that cost speed or hide errors
contradictions  variables that contradict each other
set_too_late    variables set after they are read
forwarding      variables that a launcher does not send to other hosts
across_hosts    variables that differ between hosts
recommended     variables recommended for this host and job
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.core.findings import Finding, Level
from holdfast.host.variable_rules import (
    contradictions,
    forwarding,
    harmful,
    invalid_values,
    set_too_late,
)
from holdfast.host.variable_rules import unread as unread_rules
from holdfast.host.variable_rules.across_hosts import host_differences
from holdfast.host.variable_rules.context import AuditContext
from holdfast.host.variable_sources import VariableSetting

__all__ = ["audit", "host_differences"]

_WORST_FIRST = (Level.ERROR, Level.UNKNOWN, Level.WARNING, Level.NOTE)


def audit(settings: Sequence[VariableSetting], context: AuditContext) -> tuple[Finding, ...]:
    """Return the findings about the variables, the worst first.

    Variables of one process are also judged together.
    """
    findings = [
        finding
        for group in _groups(settings)
        for finding in (*_judge_each(group, context), *contradictions.judge(group, context))
    ]
    findings += forwarding.judge(settings)
    return tuple(sorted(dict.fromkeys(findings), key=_order))


def _order(finding: Finding) -> tuple[int, str, int]:
    return _WORST_FIRST.index(finding.level), finding.subject.file or "", finding.subject.line or 0


def _groups(settings: Sequence[VariableSetting]) -> Iterator[list[VariableSetting]]:
    """Yield the variables of each process: those of all commands, plus those of one command."""
    by_origin: dict[str, list[VariableSetting]] = {}
    for setting in settings:
        by_origin.setdefault(setting.origin, []).append(setting)
    for group in by_origin.values():
        for line in dict.fromkeys((None, *(setting.command_line for setting in group))):
            yield [setting for setting in group if setting.command_line in (None, line)]


def _judge_each(settings: Sequence[VariableSetting], context: AuditContext) -> Iterator[Finding]:
    """Value and time of setting are only judged for variables that are read."""
    others = {setting.name: setting for setting in settings}
    for setting in settings:
        unread = tuple(unread_rules.judge_unread(setting, others, context))
        yield from unread
        if any(finding.level is not Level.NOTE for finding in unread):
            continue
        invalid = tuple(invalid_values.judge(setting, context))
        yield from invalid
        late = tuple(set_too_late.judge(setting))
        yield from late
        if not invalid and not late:
            yield from harmful.judge(setting, others, context)
