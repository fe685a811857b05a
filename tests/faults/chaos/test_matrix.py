"""Faults x phases x modes: every job recovers with bit-identical results and correct verdicts.

A sample runs in every test run, with forked processes; all scenarios run with `make chaos` and
`make matrix`, where everything is started as a user does.
"""

from __future__ import annotations

import pytest

from holdfast.chaos import assessment
from holdfast.chaos.environment import unsupported_reason
from holdfast.chaos.runner import run_scenario
from holdfast.chaos.scenarios import SCENARIOS
from tests.forked_programs import call_forking

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SAMPLE = {"no-spares-sigkill"}
LIMIT_S = 600


def run_forked(scenario, folder):
    return call_forking(run_scenario, scenario, folder, limit_s=LIMIT_S)


@pytest.fixture(scope="session")
def undisturbed_runs(tmp_path_factory):
    """Return the undisturbed run of a mode, executed once per session."""
    observed = {}

    def run_of(undisturbed, run):
        if undisturbed not in observed:
            observed[undisturbed] = run(undisturbed, tmp_path_factory.mktemp("peace"))
            assert (
                assessment.find_violations(
                    undisturbed, observed[undisturbed], observed[undisturbed]
                )
                == []
            ), observed[undisturbed].output
        return observed[undisturbed]

    return run_of


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(
            each,
            id=name,
            marks=[
                pytest.mark.skipif(bool(unsupported_reason(each)), reason=unsupported_reason(each)),
                *(() if name in SAMPLE else (pytest.mark.matrix,)),
            ],
        )
        for name, each in SCENARIOS.items()
    ],
)
def test_job_recovers(scenario, undisturbed_runs, tmp_path):
    run = run_forked if scenario.name in SAMPLE else run_scenario
    undisturbed = undisturbed_runs(scenario.undisturbed, run)
    observed = run(scenario, tmp_path)
    assert assessment.find_violations(scenario, observed, undisturbed) == [], observed.output
