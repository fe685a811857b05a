"""The process in which the user's code is loaded, and what it dies of."""

from pathlib import Path

import pytest

from holdfast.errors import BadValue, MissingFile
from holdfast.plan.setup import Setup
from holdfast.runtime.footprint import Limits, describe, simulate

SMALL = Path(__file__).with_name("small_models.py")


@pytest.mark.slow
def test_a_step_is_run_in_a_process_of_its_own():
    said = []
    found = simulate(f"{SMALL}:four_layers", Setup(data=8, micro_batch=1, sequence=64), 80 << 30, tell=said.append)
    assert found.footprint.answer == "fits"
    assert found.model.transformer.layers == 4
    assert said[-1] == "running a step of 4 of 4 layers"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "limits", "why"), [
    ("prints_and_dies", Limits(), "ended with status 7: the last thing it said"),
    ("slow", Limits(time_s=2.0), "2 s were over while"),
])  # fmt: skip
def test_faults_are_one_sentence(name, limits, why):
    with pytest.raises(BadValue, match=why) as refused:
        describe(f"{SMALL}:{name}", limits)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_said_at_once():
    with pytest.raises(MissingFile, match=r"nothing\.py: there is no such file"):
        describe("nothing.py:build")
