"""Parallelism degrees multiply to the world size; invalid degrees are rejected."""

import pytest

from holdfast.core.errors import InvalidValue
from holdfast.plan.setup import TrainingSetup


def test_degrees_multiply():
    setup = TrainingSetup(
        data=8,
        replicas=2,
        tensor=4,
        pipeline=2,
        context=2,
        micro_batch=3,
        accumulation=5,
        sequence=1000,
    )
    assert setup.world_size == 8 * 4 * 2 * 2
    assert setup.shards == 4 * 2
    assert setup.global_batch == 8 * 3 * 5
    assert setup.tokens_per_step == 120_000


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"tensor": 0}, "degree tensor"),
        ({"micro_batch": -1}, "micro_batch"),
        ({"data": 6, "replicas": 4}, "4 does not divide the data degree 6"),
        ({"data": 4, "context": 2, "expert": 3}, "3 does not divide the 8 data and context ranks"),
    ],
)
def test_invalid_input_is_rejected(options, expected):
    with pytest.raises(InvalidValue, match=expected):
        TrainingSetup(**options)
