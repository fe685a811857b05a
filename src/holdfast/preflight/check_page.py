"""Renders ``holdfast check --html``: the verdict, its remedies, and what each check observed."""

from __future__ import annotations

import time

from holdfast.core.exit_status import INCONCLUSIVE
from holdfast.core.text import pluralize
from holdfast.preflight.check import HostReport, report_lines
from holdfast.preflight.check_hosts import MultiHostReport
from holdfast.report.check_table import MARKS_OF_STATES
from holdfast.report.html import incident_page
from holdfast.report.timeline import Timeline


def check_page(report: HostReport | MultiHostReport) -> str:
    """Return the report of one host or several as one HTML file that loads nothing."""
    hosts = list(dict.fromkeys(check.host for check in report.checks))
    now = time.time()
    return incident_page(
        report.verdict,
        Timeline((), now, now),
        title=f"check of {hosts[0] if len(hosts) == 1 else pluralize(len(hosts), 'host')}",
        facts=[fact for check in report.checks for fact in check.facts],
        run={
            line.name if len(hosts) == 1 else f"{line.host}: {line.name}": (
                f"{MARKS_OF_STATES[line.state]} {line.text}"
            )
            for line in report_lines(report.checks)
        },
        inconclusive=report.exit_status == INCONCLUSIVE,
    )
