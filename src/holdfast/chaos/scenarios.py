"""Every scenario by name: faults x moments x modes."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.chaos import (
    external_scenarios,
    network_faults,
    rank_faults,
    recovery_scenarios,
    resource_scenarios,
)
from holdfast.chaos.scenario import Scenario
from holdfast.core.errors import UnknownName

#: Rare scenarios come first, so that an interrupted campaign has covered all kinds.
SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for source in (
        resource_scenarios,
        recovery_scenarios,
        network_faults,
        external_scenarios,
        rank_faults,
    )
    for scenario in source.scenarios()
}


def find_scenario(name: str) -> Scenario:
    """Return the scenario of that name.

    Raises:
        UnknownName: there is none; suggests similar names.
    """
    if name not in SCENARIOS:
        error = UnknownName("scenario", name, SCENARIOS)
        if not error.near:
            error.next_step = "`holdfast chaos run --list` lists them"
        raise error
    return SCENARIOS[name]
