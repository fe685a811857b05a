"""Judges whether a package is installed in several versions."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.environment.package_installed_twice import PACKAGE_INSTALLED_TWICE
from holdfast.core.findings import Finding, Level, make_finding
from holdfast.host.checks import CheckContext
from holdfast.host.checks.system.software import SoftwareResult

#: Packages with which ranks communicate, or whose version affects numerical results.
_CRITICAL_PACKAGES = frozenset(
    {"torch", "numpy", "triton", "deepspeed", "accelerate", "transformers", "lightning"}
)


def judge(result: SoftwareResult, _context: CheckContext) -> Iterator[Finding]:
    """Report all duplicates in one finding: a warning if one is critical for a job, else a note."""
    if not result.duplicates:
        return
    critical = [
        package
        for package in result.duplicates
        if package.name in _CRITICAL_PACKAGES or package.name.startswith("nvidia_")
    ]
    first = (critical or result.duplicates)[0]
    others = len(result.duplicates) - 1
    yield make_finding(
        PACKAGE_INSTALLED_TWICE,
        f"{first.name} is on sys.path as {' and as '.join(first.versions)}; {first.versions[0]} is "
        f"imported" + (f"; other packages installed more than once: {others}" if others else ""),
        level=Level.WARNING if critical else Level.NOTE,
        evidence=result.facts(),
        confidence=0.6,
    )
