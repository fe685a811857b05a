"""Who came to the meeting, and fell silent in the middle of it."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.reach import Gathered
from holdfast.findings import Fact, Finding, Subject, finding
from holdfast.rules.causes import by_name


def judge(gathered: Gathered) -> Iterator[Finding]:
    """A host that could be talked to a moment ago: its network, or the way to it, is not stable, or it went down."""
    for number, why in sorted(gathered.lost.items()):
        copy = gathered.present[number].copy
        yield finding(
            by_name("network-fabric-fault"),
            f"{copy.label} came to {copy.endpoint} and then fell silent: {why}", subject=Subject(host=copy.host),
            evidence=(Fact(text=why, origin="the meeting", host=copy.host),), confidence=0.8,
        )  # fmt: skip
