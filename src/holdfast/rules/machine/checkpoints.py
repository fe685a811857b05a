"""Will a job that begins now find the newest checkpoint whole?"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.checks import Place
from holdfast.facts.checks.checkpoints import Kept
from holdfast.findings import Finding, Level
from holdfast.rules.checkpoints import kept


def judge(seen: Kept, _place: Place) -> Iterator[Finding]:
    """What loading would pass over. That not every byte was looked at stands in the facts, and is no finding each."""
    claims = kept.judge(seen.found) if seen.found is not None else ()
    by_sizes = seen.found is not None and not seen.found.unseen
    yield from (claim for claim in claims if claim.level is not Level.UNKNOWN or not by_sizes)
