"""Ranks that a library lists as missing: Horovod's stall warnings, barriers, HCCL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from holdfast.causes.sync.collective_mismatch import COLLECTIVE_MISMATCH
from holdfast.causes.sync.rank_missing_collective import RANK_MISSING_COLLECTIVE
from holdfast.core.rank_sets import describe_ranks
from holdfast.diagnose.log_rules.candidates import CauseCandidate, lines_of
from holdfast.diagnose.log_rules.log_index import LogIndex
from holdfast.diagnose.log_rules.rank_inference import listed_ranks
from holdfast.diagnose.log_rules.signal_causes import SIGNAL_CAUSES, Tier
from holdfast.diagnose.logs import LoggedSignal

_MAX_LINES = 4


def find_listed_ranks(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield the ranks that the others report as missing, or ranks that miss each other's calls."""
    signals = index.unrecovered("ranks-missing", "ranks-ready")
    counts = Counter(rank for one in signals for rank in _missing_ranks(index, one))
    if not counts:
        return
    lines = lines_of(signals, _MAX_LINES)
    if index.world_size and counts.keys() >= set(range(index.world_size)):
        message = "every rank submitted operations that others did not submit"
        yield CauseCandidate(COLLECTIVE_MISMATCH.name, Tier.WAITING, 0.6, message, lines)
        return
    most = max(counts.values())
    missing = sorted(rank for rank, count in counts.items() if count == most)
    message = f"{describe_ranks(missing)} did not enter the operation in which the others wait"
    confidence = SIGNAL_CAUSES[signals[0].name].confidence
    name = RANK_MISSING_COLLECTIVE.name
    yield CauseCandidate(name, Tier.WAITING, confidence, message, lines, missing[0])


def _missing_ranks(index: LogIndex, signal: LoggedSignal) -> Iterable[int]:
    """Return the ranks that the line lists as missing; those not in a list of ready ranks are."""
    ready = {int(rank) for rank in str(signal.fields.get("ready", "")).split(",") if rank.strip()}
    if not ready:
        return listed_ranks(signal)
    return set(range(max(index.world_size or 0, *ready))) - ready
