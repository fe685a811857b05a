"""`holdfast chaos`: what it lists, and how it refuses. Scenarios themselves are played in tests/e2e/chaos."""

from __future__ import annotations

import pytest

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
    ],
)
def test_what_cannot_be_is_one_sentence(capsys, arguments, said):
    status, shown, told = ended(capsys, "chaos", "run", *arguments)
    assert (status, shown) == (2, "")
    assert said in told
    assert len(told.splitlines()) == 1
