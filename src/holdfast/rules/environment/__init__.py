"""Rules over variables: read by nobody, misspelt, of a wrong value, in contradiction, harmful, too late; all pure.

``names`` judges that a variable is set, ``values`` what it is set to, ``harm`` what that does to the job, ``together``
variables that do not go with each other, ``moments`` when it is set, ``sending`` whether a launcher sends it to other
hosts, ``hosts`` how hosts differ; ``recommended`` says what would fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.facts.variables import Given
from holdfast.findings import Finding, Level
from holdfast.rules.environment import harm, moments, names, sending, together, values
from holdfast.rules.environment.hosts import differences
from holdfast.rules.environment.scene import Scene

__all__ = ["audit", "differences"]

_GRAVEST_FIRST = (Level.ERROR, Level.UNKNOWN, Level.WARNING, Level.NOTE)


def audit(given: Sequence[Given], scene: Scene) -> tuple[Finding, ...]:
    """What is wrong with the variables, the gravest first; those that come together are also judged together."""
    found = [claim for group in _groups(given) for claim in (*_each(group, scene), *together.judge(group, scene))]
    found += sending.judge(given)
    return tuple(sorted(dict.fromkeys(found), key=_order))


def _order(claim: Finding) -> tuple[int, str, int]:
    return _GRAVEST_FIRST.index(claim.level), claim.subject.file or "", claim.subject.line or 0


def _groups(given: Sequence[Given]) -> Iterator[list[Given]]:
    """What one process gets: all that a place sets for everybody, and that with what it sets for one command."""
    by_origin: dict[str, list[Given]] = {}
    for each in given:
        by_origin.setdefault(each.origin, []).append(each)
    for here in by_origin.values():
        for command in dict.fromkeys((None, *(each.of_command for each in here))):
            yield [each for each in here if each.of_command in (None, command)]


def _each(given: Sequence[Given], scene: Scene) -> Iterator[Finding]:
    """Of a variable that nobody reads, its value and its moment are not judged any more."""
    others = {each.name: each for each in given}
    for each in given:
        unread = tuple(names.judge(each, others, scene))
        yield from unread
        if any(claim.level is not Level.NOTE for claim in unread):
            continue
        unusable = tuple(values.judge(each, scene))
        yield from unusable
        late = tuple(moments.judge(each))
        yield from late
        if not unusable and not late:
            yield from harm.judge(each, others, scene)
