"""Rules over what the checks of a host saw: one file a check, of the same name as in ``facts/checks``; pure.

Each has ``judge(seen, place)``, which yields findings. What could not be seen is nobody's finding: whoever asks says so
beside them (:func:`holdfast.facts.checks.unknowns`), so that it is never read as fine.
"""

from __future__ import annotations

from importlib import import_module

from msgspec.structs import replace

from holdfast.facts.checks import Check, Place, Seen
from holdfast.findings import Finding


def judge(check: Check, seen: Seen, place: Place, host: str, time: float | None = None) -> tuple[Finding, ...]:
    """What the check's rule says of a host; findings and their evidence are told to be of this host."""
    found: tuple[Finding, ...] = tuple(import_module(f"{__name__}.{check.module}").judge(seen, place))
    return tuple(_of(host, time, claim) for claim in found)


def _of(host: str, time: float | None, claim: Finding) -> Finding:
    evidence = tuple(replace(fact, host=fact.host or host, time=fact.time or time) for fact in claim.evidence)
    return replace(claim, subject=replace(claim.subject, host=claim.subject.host or host), evidence=evidence)
