"""Ranks that waited at different lines: the minority took another path than the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from holdfast.causes.sync.rank_missing_collective import RANK_MISSING_COLLECTIVE
from holdfast.causes.sync.uneven_inputs import UNEVEN_INPUTS
from holdfast.core.rank_table import SourceLine
from holdfast.diagnose.log_rules.candidates import CauseCandidate
from holdfast.diagnose.log_rules.exceptions import is_own_failure
from holdfast.diagnose.log_rules.log_index import LogIndex
from holdfast.diagnose.log_rules.network import closed_after_timeout
from holdfast.diagnose.log_rules.signal_causes import Tier
from holdfast.diagnose.logs import LoggedTraceback

#: Fewer ranks have no majority.
MIN_RANKS = 3


def find_outlier(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield the rank that waited at another line than the majority when ranks timed out."""
    by_place: dict[SourceLine, list[LoggedTraceback]] = defaultdict(list)
    waits = _first_waits(index)
    for place, wait in waits.values():
        by_place[place].append(wait)
    if len(waits) < MIN_RANKS or len(by_place) < 2 or not closed_after_timeout(index):
        return
    places = sorted(by_place, key=lambda place: len(by_place[place]))
    few, many = places[0], places[-1]
    if len(by_place[few]) == len(by_place[many]):
        return
    odd = by_place[few][0].line
    # Below the others' line in the same function: it has left their loop.
    has_left_loop = (few.file, few.function) == (many.file, many.function) and few.line > many.line
    if has_left_loop:
        cause, reason = UNEVEN_INPUTS.name, "it ran out of inputs before them"
    else:
        cause, reason = RANK_MISSING_COLLECTIVE.name, "it made a call that they did not make"
    message = (
        f"rank {odd.rank} waited at {_file_line(few)}, the other ranks at {_file_line(many)}: "
        f"{reason}"
    )
    lines = (odd, *(one.line for one in by_place[many]))
    yield CauseCandidate(cause, Tier.WAITING, 0.8, message, lines, odd.rank, place=few)


def _first_waits(index: LogIndex) -> dict[int, tuple[SourceLine, LoggedTraceback]]:
    """Return each rank's first exception that echoes another rank's failure, and its place."""
    found: dict[int, tuple[SourceLine, LoggedTraceback]] = {}
    for one in index.facts.tracebacks:
        if one.line.rank is not None and one.place is not None and not is_own_failure(one):
            found.setdefault(one.line.rank, (one.place, one))
    return found


def _file_line(place: SourceLine) -> str:
    return f"{place.file.rsplit('/', 1)[-1]}:{place.line}"
