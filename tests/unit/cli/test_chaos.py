"""`holdfast chaos`: listing and errors. Scenarios themselves run in tests/faults/chaos."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from holdfast.chaos import reliability
from holdfast.chaos.campaign import skipped_outcome
from holdfast.chaos.reliability import ScenarioOutcome
from holdfast.chaos.scenarios import SCENARIOS
from holdfast.cli.chaos import CampaignClock, _select_share
from tests.unit.cli.test_root import ended


def test_faults_and_scenarios_are_listed(capsys):
    status, faults, _ = ended(capsys, "chaos")
    assert (status, faults.splitlines()[0].split()[0]) == (0, "hang")
    status, scenarios, _ = ended(capsys, "chaos", "run", "--list")
    assert status == 0
    assert any(line.startswith("sigkill-middle ") for line in scenarios.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sigkil-middle"], "did you mean sigkill-middle"),
        (["xyz"], "`holdfast chaos run --list` lists them"),
        ([], "no scenario is given; specify scenarios"),
        (["sigkill-middle", "--all"], "--all already selects all of them"),
        (["--all", "--share", "3/2"], "'3/2' is not a share"),
        (["--all", "--share", "0/2"], "'0/2' is not a share"),
        (["--all", "--resume", "12"], "it needs a results file"),
    ],
)
def test_invalid_arguments(capsys, arguments, message):
    status, stdout, stderr = ended(capsys, "chaos", "run", *arguments)
    assert (status, stdout) == (2, "")
    assert message in stderr
    assert len(stderr.splitlines()) == 1


def test_resume_skips_recently_passed(capsys, tmp_path):
    results = tmp_path / "results.json"
    for name, scenario in SCENARIOS.items():
        reliability.add_outcome(
            results, replace(skipped_outcome(scenario, ""), name=name, at=time.time()), {}
        )
    for more in (("--resume", "1"), ("--go-on", "1"), ("--resume", "1", "--share", "2/2")):
        status, stdout, stderr = ended(
            capsys, "chaos", "run", "--all", "--results", str(results), *more
        )
        assert (status, stdout, stderr) == (0, "", "")


def test_remaining_time():
    clock = CampaignClock(["a", "b", "c"], {"a": 1e-9, "b": 1e-9})
    assert clock.tick(ScenarioOutcome(name="a", fault="", moment="", mode="", ranks=2)).startswith(
        "[1/3, about "
    )
    clock.tick(ScenarioOutcome(name="c", fault="", moment="", mode="", ranks=2))
    assert (
        clock.tick(ScenarioOutcome(name="b", fault="", moment="", mode="", ranks=2))
        == "[3/3, last]"
    )


def test_shares_partition_the_scenarios():
    shares = [_select_share(list(SCENARIOS), f"{k}/2") for k in (1, 2)]
    assert sorted(shares[0] + shares[1]) == sorted(SCENARIOS)
    assert abs(len(shares[0]) - len(shares[1])) <= 1
