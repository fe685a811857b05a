"""Ranks with different numbers of batches: one left the loop in which the others wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from holdfast.causes.sync.rank_exits_early import RANK_EXITS_EARLY
from holdfast.causes.sync.uneven_inputs import UNEVEN_INPUTS
from holdfast.core.rank_sets import describe_ranks
from holdfast.diagnose.log_rules.candidates import CauseCandidate, lines_of
from holdfast.diagnose.log_rules.log_index import LogIndex, comes_after
from holdfast.diagnose.log_rules.rank_inference import rank_of_line
from holdfast.diagnose.log_rules.signal_causes import Tier
from holdfast.diagnose.logs import LoggedSignal

#: A rank reports that it waited in vain, or lost a peer that ended.
_WAITS = ("watchdog-timeout", "gloo-timeout", "socket-timeout", "watchdog-stuck", "peer-closed")
_MAX_LINES = 4


def find_uneven_inputs(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield the rank whose inputs ended first: it says so, or has a lower total."""
    waits = index.all(*_WAITS)
    if not waits:
        return
    found = _ended_ranks(index), _fewest(index)
    reasons = "left its loop while others waited in it", "has fewer inputs than others"
    for ended, reason in zip(found, reasons, strict=True):
        if ended:
            rank = min(ended)
            message = f"{describe_ranks(ended)} {reason}: {ended[rank].line.text.strip()[:80]}"
            lines = (*lines_of(list(ended.values()), _MAX_LINES), *lines_of(waits, _MAX_LINES))
            yield CauseCandidate(UNEVEN_INPUTS.name, Tier.WAITING, 0.9, message, lines, rank)
            return


def find_early_end(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield a rank that reports the end of the training, while others wait in a collective."""
    waits = index.all(*_WAITS[:-1])
    waiting = {one.line.rank for one in waits}
    for one in index.finishes:
        rank = rank_of_line(one.line) or 0
        is_before = bool(waits) and rank not in waiting and not comes_after(one, waits[0])
        if is_before and not index.after(one, "progress", "pace"):
            message = f"rank {rank} finished its training while others waited for it"
            lines = (one.line, *lines_of(waits, _MAX_LINES))
            yield CauseCandidate(RANK_EXITS_EARLY.name, Tier.WAITING, 0.75, message, lines, rank)
            return


def find_decided_end(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield a rank that ended by its own decision, after which the others lost it."""
    for one in index.all("leaves"):
        later = index.may_follow(one, "peer-closed")
        losses = [loss for loss in later if not index.is_recovered(loss)]
        rank, ranks = rank_of_line(one.line), {rank_of_line(loss.line) for loss in losses}
        steps = index.after(one, "progress", "pace")
        goes_on = any(rank_of_line(step.line) == rank for step in steps)
        if losses and rank is not None and rank not in ranks and not goes_on:
            message = f"rank {rank} ended by itself, and the others lost it"
            lines = (one.line, *lines_of(losses, _MAX_LINES))
            yield CauseCandidate(RANK_EXITS_EARLY.name, Tier.CRASH, 0.7, message, lines, rank)
            return


def ranks_that_left(index: LogIndex) -> dict[int, LoggedSignal]:
    """Return the ranks that log the end of their loop after their last step, and the line."""
    last: dict[int, LoggedSignal] = {}
    for one in index.all("left-loop"):
        if (rank := rank_of_line(one.line)) is not None:
            last[rank] = one
    return {
        rank: one
        for rank, one in last.items()
        if not any(rank_of_line(step.line) == rank for step in index.after(one, "progress", "pace"))
    }


def _ended_ranks(index: LogIndex) -> dict[int, LoggedSignal]:
    """Return the ranks whose inputs ended, and their lines; none if they ended on all."""
    ended = {rank: one for rank, one in ranks_that_left(index).items() if "inputs" in one.fields}
    return ended if index.facts.ranks.keys() - ended.keys() else {}


def _fewest(index: LogIndex) -> dict[int, LoggedSignal]:
    """Return the ranks with the lowest total of one kind, if ranks have different totals."""
    largest: dict[str, dict[int, LoggedSignal]] = defaultdict(dict)
    for one in index.all("input-total"):
        rank, by_rank = rank_of_line(one.line), largest[str(one.fields["unit"]).lower()]
        if rank is not None and (rank not in by_rank or _total(one) > _total(by_rank[rank])):
            by_rank[rank] = one
    for by_rank in largest.values():
        least = min(map(_total, by_rank.values()), default=0)
        fewest = {rank: one for rank, one in by_rank.items() if _total(one) == least}
        if by_rank.keys() - fewest.keys():
            return fewest
    return {}


def _total(one: LoggedSignal) -> int:
    return int(one.fields["total"])
