"""Explains one type of exception that all ranks raised."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from holdfast.core.findings import Fact, Finding, make_finding
from holdfast.core.rank_sets import describe_ranks
from holdfast.core.rank_table import RankState, SourceLine
from holdfast.core.text import shorten
from holdfast.watcher.rules.gpu_memory import add_oom_details
from holdfast.watcher.rules.rank_findings import HEADLINE_CHARACTERS, describe_exception
from holdfast.watcher.rules.roots import cause_of_common_exception
from holdfast.watcher.rules.subjects import rank_subject

#: Different messages of one exception that a verdict quotes.
_QUOTED = 4


def explain_common_exception(dead: Sequence[RankState]) -> Finding:
    """Return the finding about one type of exception that every rank raised.

    If texts or lines differ, each is quoted with its ranks.
    """
    ranks_of: dict[tuple[str, SourceLine | None], list[int]] = defaultdict(list)
    for state in dead:
        if state.raised is not None:
            text = describe_exception(state.raised, HEADLINE_CHARACTERS)
            ranks_of[text, state.raised.place].append(state.rank)
    raised = next(state.raised for state in dead if state.raised is not None)
    text = "; ".join(
        f"{shorten(summary, HEADLINE_CHARACTERS // min(len(ranks_of), _QUOTED))}"
        + (f" at {place.short}" if place else "")
        + (f" ({describe_ranks(ranks)})" if len(ranks_of) > 1 else "")
        for (summary, place), ranks in list(ranks_of.items())[:_QUOTED]
    )
    if len(ranks_of) > _QUOTED:
        text += f"; and {len(ranks_of) - _QUOTED} more"
    finding = make_finding(
        cause_of_common_exception(raised),
        f"all ranks raised {text}",
        subject=rank_subject(dead[0].rank, None, raised.place),
        evidence=tuple(
            Fact(
                text=describe_exception(state.raised),
                origin=state.raised.origin or f"trace of rank {state.rank}",
                rank=state.rank,
            )
            for state in dead[:_QUOTED]
            if state.raised is not None
        ),
        confidence=0.95,
    )
    return add_oom_details(finding, raised.text)
