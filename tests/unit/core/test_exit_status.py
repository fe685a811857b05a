"""Exit statuses from findings and from the root of a verdict."""

import pytest

from holdfast.core.exit_status import status_of_findings, status_of_root
from holdfast.core.findings import Finding, Level


def finding(level):
    return Finding(code="X001", cause="x", level=level, message="x")


@pytest.mark.parametrize(
    ("levels", "inconclusive", "status"),
    [
        ([], False, 0),
        ([], True, 3),
        ([Level.WARNING, Level.UNKNOWN], False, 0),
        ([Level.WARNING, Level.ERROR], True, 1),
    ],
)
def test_status_of_findings(levels, inconclusive, status):
    assert status_of_findings(map(finding, levels), inconclusive=inconclusive) == status


@pytest.mark.parametrize(("level", "status"), [("error", 1), ("unknown", 3), ("warning", 0)])
def test_status_of_root(level, status):
    assert status_of_root(finding(Level(level))) == status
