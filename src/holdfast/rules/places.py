"""What the source around calls says of them: under a test of the rank, behind a loop, beside a swallowed exception.

A call's own line is asked first, then the line that called its function (as recorded, else any in the same file that
does), then those that call that one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.facts.ranks import Operation, Place
from holdfast.facts.source import Guard, Surroundings

#: The source around every place that a judgement may ask for.
Source = Mapping[Place, Surroundings]
STEPS_UP = 2


def upwards(call: Operation, source: Source) -> Iterator[tuple[int, Place, Surroundings]]:
    """The call's line and those above it, each with how many steps up it is and what surrounds it, nearest first."""
    level = [call.site] if call.site is not None else []
    for steps in range(STEPS_UP + 1):
        known = [(each, source[each]) for each in level if each in source]
        for place, seen in known:
            yield steps, place, seen
        recorded = [call.caller] if steps == 0 and call.caller is not None else []
        level = recorded or [caller for _, seen in known for caller in seen.callers]


def own_guard(place: Place | None, source: Source) -> Guard | None:
    """The nearest test of the rank around the place itself, in its own function."""
    seen = source.get(place) if place is not None else None
    return next((guard for guard in reversed(seen.guards) if guard.rank_dependent), None) if seen else None


def rank_guard(call: Operation, other: Operation | None, source: Source) -> tuple[Guard, Place] | None:
    """The nearest test of the rank that decides whether the call is reached, and the line that stands under it.

    A test that lets the ``other`` call through in the same way decides nothing between the two.
    """
    around_other = upwards(other, source) if other else ()
    shared = {(place.file, guard) for _, place, seen in around_other for guard in seen.guards}
    for _, place, _ in upwards(call, source):
        guard = own_guard(place, source)
        if guard is not None and (place.file, guard) not in shared:
            return guard, place
    return None


def is_after_loop_of(odd: Operation, usual: Operation, source: Source) -> bool:
    """True where ``odd`` comes after a loop that ``usual`` is in, in one function that both are called from.

    The loop may stand in that function, or further down on the way to ``usual``, in what the function calls.
    """
    looping: set[int] = set()  # steps at which, or below which, the way to the usual call goes through a loop
    for steps, here, around_usual in upwards(usual, source):
        below = any(step < steps for step in looping)
        if around_usual.loops:
            looping.add(steps)
        for _, there, around_odd in upwards(odd, source):
            if here.file != there.file or around_usual.begin != around_odd.begin:
                continue
            if any(loop.last < there.line for loop in around_usual.loops) or (below and here.line < there.line):
                return True
    return False


def loop_swallows(call: Operation | None, source: Source) -> Place | None:
    """What lets a loop around the call go on as if nothing had been raised; None where nothing does."""
    for _, here, seen in upwards(call, source) if call is not None else ():
        for loop in reversed(seen.loops):
            if loop.swallows is not None:
                return Place(here.file, loop.swallows, seen.function)
    return None
