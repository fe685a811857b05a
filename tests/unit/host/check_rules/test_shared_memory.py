"""Findings about free space in /dev/shm."""

import pytest

from holdfast.core.findings import Level, Unknown
from holdfast.host.check_rules import judge_check
from holdfast.host.checks import CHECKS, CheckContext
from holdfast.host.checks.system.shared_memory import SharedMemoryResult


@pytest.mark.parametrize(
    ("free", "level"),
    [(0, Level.ERROR), (64 << 20, Level.ERROR), (65 << 20, Level.WARNING), (1 << 30, None)],
)
def test_free_space(free, level):
    result = SharedMemoryResult(size_bytes=1 << 31, free_bytes=free)
    findings = judge_check(CHECKS["shared-memory"], result, CheckContext(), "a", 5.0)
    assert [finding.level for finding in findings] == ([level] if level else [])
    assert all(
        finding.cause == "shm-too-small" and finding.subject.host == "a" for finding in findings
    )
    assert all(
        fact.host == "a" and fact.time == 5.0 for finding in findings for fact in finding.evidence
    )


def test_unknown_is_no_finding():
    result = SharedMemoryResult(size_bytes=Unknown("x"), free_bytes=Unknown("x"))
    assert judge_check(CHECKS["shared-memory"], result, CheckContext(), "a") == ()
