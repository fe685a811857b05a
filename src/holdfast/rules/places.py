"""What the source around two calls says of them: under a test of the rank, behind a loop, beside a swallowed exception.

A call's own line is asked first, then the lines in the same file that call its function, two steps up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.facts.ranks import Place
from holdfast.facts.source import Guard, Surroundings

#: The source around every place that a judgement may ask for.
Source = Mapping[Place, Surroundings]
STEPS_UP = 2


def _upwards(place: Place | None, source: Source) -> Iterator[tuple[Place, Surroundings]]:
    """The place and those that call its function, each with what surrounds it, nearest first."""
    level = [place] if place is not None else []
    for _ in range(STEPS_UP + 1):
        known = [(each, source[each]) for each in level if each in source]
        yield from known
        level = [caller for _, seen in known for caller in seen.callers]


def own_guard(place: Place | None, source: Source) -> Guard | None:
    """The nearest test of the rank around the place itself, in its own function."""
    seen = source.get(place) if place is not None else None
    return next((guard for guard in reversed(seen.guards) if guard.rank_dependent), None) if seen else None


def rank_guard(place: Place | None, source: Source) -> Guard | None:
    """The nearest test of the rank that decides whether the place is reached; None where there is none."""
    guards = (own_guard(each, source) for each, _ in _upwards(place, source))
    return next((guard for guard in guards if guard is not None), None)


def is_after_loop_of(odd: Place | None, usual: Place | None, source: Source) -> bool:
    """True where ``odd`` comes after the end of a loop that ``usual`` is in."""
    for here, around_usual in _upwards(usual, source):
        for there, around_odd in _upwards(odd, source):
            if here.file == there.file and around_usual.begin == around_odd.begin:
                if any(loop.last < there.line for loop in around_usual.loops):
                    return True
    return False


def loop_swallows(place: Place | None, source: Source) -> Place | None:
    """The ``except`` that lets a loop around the place go on as if nothing had happened; None where there is none."""
    for here, seen in _upwards(place, source):
        for loop in reversed(seen.loops):
            if loop.swallows is not None:
                return Place(here.file, loop.swallows, seen.function)
    return None
