"""Signals that indicate a cause by themselves."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.diagnose.log_rules.candidates import CauseCandidate, candidate_of
from holdfast.diagnose.log_rules.log_index import LogIndex
from holdfast.diagnose.log_rules.signal_causes import SIGNAL_CAUSES, Tier


def find_machine_faults(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield faults that the kernel or a driver reports."""
    return _find_in_tier(index, Tier.MACHINE)


def find_named_errors(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield errors that name their cause, and others that no specific rule weighs."""
    tiers = (Tier.NAMED, Tier.DEVICE, Tier.NETWORK, Tier.OUTSIDE, Tier.LOST, Tier.WAITING)
    return [one for tier in tiers for one in _find_in_tier(index, tier)]


def find_crashes(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield fatal signals without a stated reason; after a watchdog timeout torch aborts itself."""
    if "watchdog-timeout" in index:
        return []
    return [*_find_in_tier(index, Tier.CRASH), *_find_in_tier(index, Tier.SILENCE)]


def _find_in_tier(index: LogIndex, tier: Tier) -> list[CauseCandidate]:
    return [
        candidate_of(index, meaning, signals)
        for name, meaning in SIGNAL_CAUSES.items()
        if meaning.tier is tier
        and not meaning.weighed
        and meaning.explained_by not in index
        and (signals := index.unrecovered(name))
    ]
