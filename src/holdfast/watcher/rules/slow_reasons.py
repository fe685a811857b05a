"""Names why a rank is slow, if there is evidence: its data loader, garbage collection, throttling.

Pure functions. A reason is named only if the rank differs in it from the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from holdfast.causes import by_name
from holdfast.core.findings import Fact, Finding
from holdfast.core.rank_table import RankState
from holdfast.core.treatments import Treatment

#: Minimum difference from the median of all ranks, a fraction of time.
MIN_MORE = 0.1


def reasons_of(
    slow: RankState, ranks: Sequence[RankState], health: Sequence[Finding] = ()
) -> tuple[Fact, ...]:
    """Return a fact for each reason for which ``slow`` is slower than the others."""
    usual_loader = median(state.loader_share for state in ranks)
    usual_collector = median(state.collector_share for state in ranks)
    origin = f"trace of rank {slow.rank}"
    facts = []
    if slow.loader_share >= usual_loader + MIN_MORE:
        text = (
            f"it waits {slow.loader_share:.0%} of the time for its data loader, the others "
            f"{usual_loader:.0%}"
        )
        facts.append(Fact(text=text, origin=origin, rank=slow.rank, host=slow.host or None))
    if slow.collector_share >= usual_collector + MIN_MORE:
        text = (
            f"Python collects garbage {slow.collector_share:.0%} of its time, on the others "
            f"{usual_collector:.0%}"
        )
        facts.append(Fact(text=text, origin=origin, rank=slow.rank, host=slow.host or None))
    facts += (
        Fact(text=finding.message, origin=f"health of {slow.host}", host=slow.host)
        for finding in health
        if slow.host
        and finding.subject.host == slow.host
        and by_name(finding.cause).treatment is Treatment.SLOW_HOST
    )
    return tuple(dict.fromkeys(facts))
