"""Packages that are on the path twice."""

import pytest

from holdfast.facts.checks import Place
from holdfast.facts.checks.software import Software, Twice
from tests.rules.machine.asked import found

NUMPY = Twice("numpy", ("2.1.0", "1.26.4"), ("/a", "/b"))
CLICK = Twice("click", ("8.1.7", "8.0.0"), ("/a", "/b"))


@pytest.mark.parametrize(
    ("twice", "level", "words"),
    [
        ((NUMPY,), "warning", "numpy is on the path as 2.1.0 and as 1.26.4, of which 2.1.0 is imported here"),
        ((CLICK, NUMPY), "warning", "numpy is on the path as 2.1.0 and as 1.26.4, of which 2.1.0 is imported here; 1"),
        ((CLICK,), "note", "click is on the path"),
    ],
)
def test_two_versions(twice, level, words):
    seen = Software(python="3.11", executable="x", holdfast="0", packages={}, fingerprint="f", twice=twice)
    ((told, cause, message),) = found("software", Place(), seen)
    assert (told, cause) == (level, "package-installed-twice")
    assert message.startswith(words)
