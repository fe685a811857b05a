"""Findings about packages installed in several versions."""

import pytest

from holdfast.host.checks import CheckContext
from holdfast.host.checks.system.software import DuplicatePackage, SoftwareResult
from tests.unit.host.check_rules.findings_of import findings_of

NUMPY = DuplicatePackage("numpy", ("2.1.0", "1.26.4"), ("/a", "/b"))
CLICK = DuplicatePackage("click", ("8.1.7", "8.0.0"), ("/a", "/b"))


@pytest.mark.parametrize(
    ("duplicates", "level", "words"),
    [
        (
            (NUMPY,),
            "warning",
            "numpy is on sys.path as 2.1.0 and as 1.26.4; 2.1.0 is imported",
        ),
        (
            (CLICK, NUMPY),
            "warning",
            "numpy is on sys.path as 2.1.0 and as 1.26.4; 2.1.0 is imported; other packages",
        ),
        ((CLICK,), "note", "click is on sys.path"),
    ],
)
def test_two_versions(duplicates, level, words):
    result = SoftwareResult(
        python="3.11",
        executable="x",
        holdfast="0",
        packages={},
        fingerprint="f",
        duplicates=duplicates,
    )
    ((actual, cause, message),) = findings_of("software", CheckContext(), result)
    assert (actual, cause) == (level, "package-installed-twice")
    assert message.startswith(words)
