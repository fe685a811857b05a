"""Ranks that waited in different lines of the program: who stands alone went another way than the rest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from holdfast.facts.logs import LoggedTraceback
from holdfast.facts.ranks import Place
from holdfast.rules.logs.exceptions import is_own
from holdfast.rules.logs.heard import Candidate, Heard
from holdfast.rules.logs.meanings import Tier
from holdfast.rules.logs.network import gave_up

#: Fewer ranks have no majority.
LEAST_RANKS = 3


def stood(heard: Heard) -> Iterable[Candidate]:
    """Where each rank was when it ran out of patience, or its peers did, and who of them is in the minority."""
    waits = _waits(heard)
    by_place: dict[Place, list[LoggedTraceback]] = defaultdict(list)
    for one in waits.values():
        if one.place is not None:
            by_place[one.place].append(one)
    if len(waits) < LEAST_RANKS or len(by_place) < 2 or not gave_up(heard):
        return
    places = sorted(by_place, key=lambda place: len(by_place[place]))
    few, many = places[0], places[-1]
    if len(by_place[few]) == len(by_place[many]):
        return
    odd = by_place[few][0]
    # Beyond the others' line of the same function: it has left the loop that they are in.
    later = (few.file, few.function) == (many.file, many.function) and few.line > many.line
    message = f"rank {odd.line.rank} waited in {_text(few)} and the others in {_text(many)}: it " + (
        "was through with its inputs before them" if later else "called something that they did not"
    )
    lines = (odd.line, *(one.line for one in by_place[many]))
    cause = "uneven-inputs" if later else "rank-missing-collective"
    yield Candidate(cause, Tier.WAITING, 0.8, message, lines, odd.line.rank, place=few)


def _waits(heard: Heard) -> dict[int, LoggedTraceback]:
    """The first exception of each rank that only tells of the others."""
    found: dict[int, LoggedTraceback] = {}
    for one in heard.facts.tracebacks:
        if one.line.rank is not None and one.place is not None and not is_own(one):
            found.setdefault(one.line.rank, one)
    return found


def _text(place: Place) -> str:
    return f"{place.file.rsplit('/', 1)[-1]}:{place.line}"
