"""Exit statuses that all commands share; ``run`` exits with the status of its job instead."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.findings import Finding, Level

OK = 0
ERRORS_FOUND = 1
USAGE = 2
INCONCLUSIVE = 3


def status_of_findings(findings: Iterable[Finding], *, inconclusive: bool = False) -> int:
    """Return ``ERRORS_FOUND`` if any finding is an error, else by ``inconclusive``."""
    if any(finding.level is Level.ERROR for finding in findings):
        return ERRORS_FOUND
    return INCONCLUSIVE if inconclusive else OK


def status_of_root(root: Finding) -> int:
    """Return the status for a verdict with this root: by its level."""
    return {Level.ERROR: ERRORS_FOUND, Level.UNKNOWN: INCONCLUSIVE}.get(root.level, OK)
