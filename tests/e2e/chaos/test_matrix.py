"""Faults x moments x modes: every job comes back, with the numbers of one that was left in peace, and says why.

A sample is in every run of the tests, all of it in `make chaos`.
"""

from __future__ import annotations

import pytest

from holdfast.actions.chaos import assess
from holdfast.actions.chaos.places import why_not
from holdfast.actions.chaos.play import play
from holdfast.actions.chaos.scenarios import SCENARIOS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SAMPLE = {
    "sigkill-middle", "sigstop-evaluation", "flip-checkpoint", "preemption", "loader-killed", "kill-agent-middle",
    "fsdp2-sigkill-middle", "two-hosts-cut-one-way",
}  # fmt: skip


@pytest.fixture(scope="session")
def in_peace(tmp_path_factory):
    """What a job of that mode does when nothing happens to it: played once."""
    played = {}

    def of(calm):
        if calm not in played:
            played[calm] = play(calm, tmp_path_factory.mktemp("peace"))
            assert assess.wrong(calm, played[calm], played[calm]) == [], played[calm].output
        return played[calm]

    return of


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(
            each, id=name,
            marks=[
                pytest.mark.skipif(bool(why_not(each)), reason=why_not(each)),
                *(() if name in SAMPLE else (pytest.mark.matrix,)),
            ],
        )
        for name, each in SCENARIOS.items()
    ],
)  # fmt: skip
def test_the_job_survives(scenario, in_peace, tmp_path):
    peace = in_peace(scenario.calm)
    played = play(scenario, tmp_path)
    assert assess.wrong(scenario, played, peace) == [], played.output
