"""Rules over what copies on several hosts saw of each other; pure.

:func:`judge` is asked where copies met, by whoever led, and its answer is everybody's; :func:`alone` where a copy
reached nobody. :func:`unseen` tells what could not be looked at.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.reach import Approach, Copy, Gathered
from holdfast.findings import Finding, Level, Unknown
from holdfast.rules.reach import attendance, clocks, mesh, mtus, pace, published, silent, way


def judge(gathered: Gathered) -> tuple[Finding, ...]:
    """All findings, those of the way to the endpoint first."""
    return tuple(
        finding
        for rule in (attendance.judge, silent.judge, published.judge, mesh.judge, mtus.judge, pace.judge, clocks.judge)
        for finding in rule(gathered)
    )


def alone(copy: Copy, approach: Approach, why: Unknown, wait_s: float) -> tuple[Finding, ...]:
    """What a copy that reached nobody can say of its own way."""
    return tuple(way.judge(copy, approach, why, wait_s))


def unseen(gathered: Gathered) -> Iterator[str]:
    """What was not looked at, or not told."""
    if gathered.unmeasured:
        yield f"{gathered.unmeasured:,} pairs of hosts were not measured: the time for measuring was over"
    silent = [each.copy.label for each in gathered.present if each.number not in gathered.reports]
    if silent:
        yield f"{', '.join(silent[:16])}: no report of the host's own checks came"


def failing(gathered: Gathered, findings: tuple[Finding, ...]) -> set[str]:
    """The labels of the hosts that an error is about; a link's fault is that of both its ends, a set's of all in it."""
    labels = {each.copy.host: each.copy.label for each in gathered.present}
    found = {gathered.present[number].copy.label for number in mesh.everywhere(gathered)}
    for finding in findings:
        if finding.level is Level.ERROR:
            ends = [finding.subject.host, *(finding.subject.link or "").split(" -> ")]
            found |= {labels[end] for end in ends if end in labels}
    return found
