"""Ranks whose end is unknown in the traces of a finished job: these are never reported as healthy.

A rank whose trace file records neither an exception nor the end of its script was killed, crashed,
exited with ``os._exit``, or is still running on the host from which the file was copied.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.causes.network.network_fabric_fault import NETWORK_FABRIC_FAULT
from holdfast.causes.process.peer_lost import PEER_LOST
from holdfast.causes.sync.collective_incomplete import COLLECTIVE_INCOMPLETE
from holdfast.core.findings import Finding, Level, Subject, Verdict, make_finding
from holdfast.core.rank_sets import describe_ranks
from holdfast.core.rank_table import RankState
from holdfast.watcher.rules import roots

#: Confidence of a verdict that also fits a job that was killed as a whole.
#: Causes of a call that all ranks entered.
_ALL_INSIDE = frozenset({NETWORK_FABRIC_FAULT.name, COLLECTIVE_INCOMPLETE.name})
_DOUBTFUL = 0.3
_HOW = (
    "killed, crashed, exited with os._exit, or still running where the trace file was copied from"
)


def unobserved_ranks(rows: Sequence[RankState]) -> list[RankState]:
    """Return the rows whose end is unknown."""
    return [row for row in rows if roots.is_unobserved(row)]


def weigh_unobserved(
    verdict: Verdict, rows: Sequence[RankState], *, stall_observed: bool
) -> Verdict:
    """Return ``verdict`` with what is unknown about the end of ``rows``.

    ``stall_observed``: the time for which the job stalled was observed.
    """
    unknown = unobserved_ranks(rows)
    if not unknown:
        return verdict
    root = verdict.root
    if root is None:
        who = describe_ranks(row.rank for row in unknown)
        text = f"how {who} ended: no end recorded in the trace files ({_HOW})"
        finding = _missing_end_finding(unknown, rows)
        return replace(verdict, root=finding, unseen=(*verdict.unseen, text))
    if root.cause in _ALL_INSIDE and not stall_observed:
        message = f"{root.message}; or all ranks were killed there"
        doubtful = replace(root, message=message, level=Level.UNKNOWN, confidence=_DOUBTFUL)
        return replace(verdict, root=doubtful)
    return verdict


def _missing_end_finding(unknown: Sequence[RankState], rows: Sequence[RankState]) -> Finding | None:
    """Return a finding if other ranks recorded their end; None if none did."""
    ended = [row.rank for row in rows if row.ended is not None or row.raised is not None]
    if not ended:
        return None
    who = describe_ranks(row.rank for row in unknown)
    message = f"{who} recorded no end, unlike {describe_ranks(ended)}: {_HOW}"
    first = min(unknown, key=lambda row: row.progress)
    subject = Subject(rank=first.rank, host=first.host or None)
    return make_finding(
        PEER_LOST, message, level=Level.UNKNOWN, subject=subject, confidence=_DOUBTFUL
    )
