"""Every scenario by its name: faults x moments x modes, as data."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.actions.chaos import inside, network, outside, remedies, shortages
from holdfast.actions.chaos.scenario import Scenario
from holdfast.errors import UnknownName

#: What is rare comes first, so that a run that is cut short has seen some of everything.
SCENARIOS: Mapping[str, Scenario] = {
    each.name: each for source in (shortages, remedies, network, outside, inside) for each in source.scenarios()
}


def find(name: str) -> Scenario:
    """The scenario of that name.

    Raises:
        UnknownName: there is none; says which are near.
    """
    if name not in SCENARIOS:
        error = UnknownName("scenario", name, SCENARIOS)
        if not error.near:
            error.next_step = "`holdfast chaos run --list` lists them"
        raise error
    return SCENARIOS[name]
