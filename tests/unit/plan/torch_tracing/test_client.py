"""The process that loads the user's code, and its failures."""

from pathlib import Path

import pytest

from holdfast.core.errors import InvalidValue, MissingFile
from holdfast.plan.setup import TrainingSetup
from holdfast.plan.torch_tracing import TraceLimits, describe_module, simulate_step

SMALL = Path(__file__).with_name("small_models.py")


@pytest.mark.slow
def test_step_runs_in_a_separate_process():
    expected = []
    result = simulate_step(
        f"{SMALL}:four_layers",
        TrainingSetup(data=8, micro_batch=1, sequence=64),
        80 << 30,
        report=expected.append,
    )
    assert result.memory.fit == "fits"
    assert result.model.transformer.layers == 4
    assert expected[-1] == "running a step with 4 of 4 layers"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "limits", "why"),
    [
        ("prints_and_dies", TraceLimits(), "exited with status 7: the last thing it said"),
        ("slow", TraceLimits(timeout_s=2.0), "timed out after 2 s while"),
    ],
)
def test_invalid_setups_give_one_sentence(name, limits, why):
    with pytest.raises(InvalidValue, match=why) as raised:
        describe_module(f"{SMALL}:{name}", limits)
    assert "\n" not in str(raised.value)


def test_missing_file_is_reported_immediately():
    with pytest.raises(MissingFile, match=r"nothing\.py: there is no such file"):
        describe_module("nothing.py:build")
