"""Fills the placeholders in the commands of remedies, such as PID and SCRIPT."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from holdfast.core.findings import Finding, Remedy, Verdict


def fill_remedy(remedy: Remedy, values: Mapping[str, str]) -> Remedy:
    """Replace whole words of the command that are keys of ``values``; empty values are unknown."""
    command = remedy.command
    for placeholder, value in values.items():
        if command is not None and value:
            escaped = value.replace("\\", r"\\")
            command = re.sub(rf"\b{placeholder}\b", escaped, command)
    return replace(remedy, command=command)


def fill_verdict(verdict: Verdict, values: Mapping[str, str]) -> Verdict:
    """Replace the placeholders in all findings of a verdict."""

    def fill(finding: Finding) -> Finding:
        return replace(
            finding, remedies=tuple(fill_remedy(remedy, values) for remedy in finding.remedies)
        )

    return replace(
        verdict,
        root=None if verdict.root is None else fill(verdict.root),
        consequences=tuple(map(fill, verdict.consequences)),
        suspects=tuple(map(fill, verdict.suspects)),
    )
