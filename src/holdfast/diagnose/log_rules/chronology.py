"""Which of several possible causes came first, and is the root.

A line of an early tier (``core/log_signals.py``) states its cause, so candidates are ordered by
tier. But of two that can begin a failure, the one that came first is the root: the other may be its
effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.diagnose.log_rules.candidates import CauseCandidate
from holdfast.diagnose.log_rules.log_index import is_later
from holdfast.diagnose.log_rules.signal_causes import Tier
from holdfast.diagnose.logs import LogLine

#: An earlier candidate is the root if its confidence is at least this share of the other's: a vague
#: warning is no root because it came first.
MIN_SHARE = 0.75
#: Lines of one log that are nearer are of one event, such as a message of several lines.
EVENT_LINES = 24
#: Reported when a log of the machine is read, which may be much later.
_REPORTED_LATE = frozenset({Tier.MACHINE})
#: These report that somebody else failed.
_EFFECTS = frozenset({Tier.LOST, Tier.WAITING, Tier.SILENCE})


def order_by_cause(candidates: Iterable[CauseCandidate]) -> list[CauseCandidate]:
    """Return the best candidate of each cause, the root first, the others by tier."""
    best: dict[str, CauseCandidate] = {}
    for candidate in sorted(candidates, key=lambda one: one.order):
        best.setdefault(candidate.cause, candidate)
    ordered = list(best.values())
    root = _find_root(ordered)
    return sorted(ordered, key=lambda one: one is not root)


def _find_root(ordered: Sequence[CauseCandidate]) -> CauseCandidate | None:
    root = next(iter(ordered), None)
    for one in ordered[1:]:
        if root is None or root.tier in _REPORTED_LATE or one.tier in _EFFECTS:
            continue
        if one.confidence >= MIN_SHARE * root.confidence and precedes(one, root):
            root = one
    return root


def precedes(one: CauseCandidate, other: CauseCandidate) -> bool:
    """Return whether ``one`` began before every line of ``other``, as a separate event.

    Of one event, the line of the earlier tier counts; of one tier, its first line.
    """
    others = _firsts(other.lines)
    least = 0 if one.tier is other.tier else EVENT_LINES
    return bool(others) and any(
        all(_is_later_event(later, line, least) for later in others) for line in _firsts(one.lines)
    )


def is_order_unknown(one: CauseCandidate, other: CauseCandidate, unaligned: frozenset[str]) -> bool:
    """Return whether the logs do not show which of two began first.

    They are in other logs, without times, or their clocks are ``unaligned``.
    """
    logs, others = ({line.source for line in each.lines} for each in (one, other))
    if _EFFECTS & {one.tier, other.tier} or not logs or not others or logs & others:
        return False
    if not unaligned.isdisjoint(logs | others):
        return True
    return not precedes(one, other) and not precedes(other, one)


def _is_later_event(later: LogLine, line: LogLine, least: int) -> bool:
    is_near = line.source == later.source and later.number - line.number <= least
    return not is_near and is_later(later, line) is True


def _firsts(lines: Iterable[LogLine]) -> list[LogLine]:
    """Return the first line of each log."""
    firsts: dict[str, LogLine] = {}
    for line in lines:
        known = firsts.setdefault(line.source, line)
        if line.number < known.number:
            firsts[line.source] = line
    return list(firsts.values())
