"""What boxes of a job that is over leave open, because nobody saw its processes: that is never called fine.

A rank whose box notes neither an exception nor the end of its script was killed, crashed, left by ``os._exit``, or
still runs where its box was copied from.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.facts.ranks import RankState
from holdfast.findings import Finding, Level, Subject, Verdict, finding
from holdfast.report.ranksets import say_ranks
from holdfast.rules import roots
from holdfast.rules.causes import by_name

#: How sure a verdict can be that nobody could tell from a job killed as a whole.
_DOUBTFUL = 0.3
_HOW = "killed, crashed, left by os._exit, or still running where the box was copied from"


def ranks(rows: Sequence[RankState]) -> list[RankState]:
    """The rows of which nothing tells how they ended, or whether they did."""
    return [row for row in rows if roots.is_untold(row)]


def weigh(verdict: Verdict, rows: Sequence[RankState], *, watched: bool) -> Verdict:
    """``verdict`` over ``rows`` with what is not known of them.

    ``watched`` is True where somebody saw for how long the job stood still.
    """
    untold = ranks(rows)
    if not untold:
        return verdict
    root = verdict.root
    if root is None:
        text = f"how {say_ranks(row.rank for row in untold)} ended, whose boxes do not note it: {_HOW}"
        return replace(verdict, root=_no_end(untold, rows), unseen=(*verdict.unseen, text))
    if root.cause == "network-fabric-fault" and not watched:
        doubt = f"{root.message}; or all were killed there"
        return replace(verdict, root=replace(root, message=doubt, level=Level.UNKNOWN, confidence=_DOUBTFUL))
    return verdict


def _no_end(untold: Sequence[RankState], rows: Sequence[RankState]) -> Finding | None:
    """A finding where some ended and some did not note it; None where nobody did."""
    ended = [row.rank for row in rows if row.ended is not None or row.raised is not None]
    if not ended:
        return None
    who, verb = say_ranks(row.rank for row in untold), "note" if len(untold) > 1 else "notes"
    message = f"{who} {verb} no end, as {say_ranks(ended)} did: {_HOW}"
    first = min(untold, key=lambda row: row.progress)
    subject = Subject(rank=first.rank, host=first.host or None)
    return finding(by_name("peer-lost"), message, level=Level.UNKNOWN, subject=subject, confidence=_DOUBTFUL)
