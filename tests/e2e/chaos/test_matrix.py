"""Faults x moments x modes: every job comes back, with the numbers of one that was left in peace, and says why.

A sample is in every run of the tests, all of it in `make chaos`.
"""

from __future__ import annotations

import pytest

from holdfast.actions.chaos import assess
from holdfast.actions.chaos.play import play
from holdfast.actions.chaos.scenarios import SCENARIOS, Scenario

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SAMPLE = {
    "sigkill-middle", "exception-checkpoint", "sigstop-evaluation", "exit-0-first-step", "sigkill-rank-0-end",
    "flip-checkpoint", "preemption", "loader-killed", "kill-agent-middle", "fsdp2-sigkill-middle",
}  # fmt: skip


@pytest.fixture(scope="session")
def in_peace(tmp_path_factory):
    """What a job of that mode does when nothing happens to it: played once."""
    played = {}

    def of(scenario):
        key = (scenario.mode, scenario.ranks)
        if key not in played:
            calm = Scenario(name="peace", fault="none", moment="", mode=key[0], ranks=key[1])
            played[key] = play(calm, tmp_path_factory.mktemp("peace"))
            assert assess.wrong(calm, played[key], played[key]) == [], played[key].output
        return played[key]

    return of


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(each, id=name, marks=() if name in SAMPLE else pytest.mark.matrix)
        for name, each in SCENARIOS.items()
    ],
)
def test_the_job_survives(scenario, in_peace, tmp_path):
    peace = in_peace(scenario)
    played = play(scenario, tmp_path)
    assert assess.wrong(scenario, played, peace) == [], played.output
