"""`holdfast chaos`: what it lists, and how it refuses. Scenarios themselves are played in tests/e2e/chaos."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from holdfast.actions.chaos.campaign import not_played
from holdfast.actions.chaos.scenarios import SCENARIOS
from holdfast.cli.chaos import Clock, _share
from holdfast.report import reliability
from holdfast.report.reliability import Outcome
from tests.cli.test_root import ended


def test_faults_and_scenarios_are_listed(capsys):
    status, faults, _ = ended(capsys, "chaos")
    assert (status, faults.splitlines()[0].split()[0]) == (0, "hang")
    status, scenarios, _ = ended(capsys, "chaos", "run", "--list")
    assert status == 0
    assert any(line.startswith("sigkill-middle ") for line in scenarios.splitlines())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sigkil-middle"], "did you mean sigkill-middle"),
        (["xyz"], "`holdfast chaos run --list` lists them"),
        ([], "name some (--list), or say --all"),
        (["sigkill-middle", "--all"], "--all means all of them"),
        (["--all", "--share", "3/2"], "'3/2' is no share"),
        (["--all", "--share", "0/2"], "'0/2' is no share"),
        (["--all", "--go-on", "12"], "no file of results is named"),
    ],
)
def test_what_cannot_be_is_one_sentence(capsys, arguments, said):
    status, shown, told = ended(capsys, "chaos", "run", *arguments)
    assert (status, shown) == (2, "")
    assert said in told
    assert len(told.splitlines()) == 1


def test_what_was_survived_lately_is_left_out_and_shares_are_of_all(capsys, tmp_path):
    results = tmp_path / "results.json"
    for name, scenario in SCENARIOS.items():
        reliability.add(results, replace(not_played(scenario, ""), name=name, at=time.time()), {})
    for share in ((), ("--share", "2/2")):
        status, shown, told = ended(capsys, "chaos", "run", "--all", "--go-on", "1", "--results", str(results), *share)
        assert (status, shown, told) == (0, "", "")


def test_how_long_the_rest_may_take():
    clock = Clock(["a", "b", "c"], {"a": 1e-9, "b": 1e-9})
    assert clock.tick(Outcome(name="a", fault="", moment="", mode="", ranks=2)).startswith("[1/3, about ")
    clock.tick(Outcome(name="c", fault="", moment="", mode="", ranks=2))
    assert clock.tick(Outcome(name="b", fault="", moment="", mode="", ranks=2)) == "[3/3, the last]"


def test_a_share_is_every_other_one():
    shares = [_share(list(SCENARIOS), f"{k}/2") for k in (1, 2)]
    assert sorted(shares[0] + shares[1]) == sorted(SCENARIOS)
    assert abs(len(shares[0]) - len(shares[1])) <= 1
