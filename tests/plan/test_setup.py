"""A run's degrees multiply to its world size, and those that cannot be are refused."""

import pytest

from holdfast.errors import BadValue
from holdfast.plan.setup import Setup


def test_degrees_multiply():
    setup = Setup(data=8, replicas=2, tensor=4, pipeline=2, context=2, micro_batch=3, accumulation=5, sequence=1000)
    assert setup.world_size == 8 * 4 * 2 * 2
    assert setup.shards == 4 * 2
    assert setup.global_batch == 8 * 3 * 5
    assert setup.tokens_a_step == 120_000


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tensor": 0}, "the degree tensor"),
        ({"micro_batch": -1}, "micro_batch"),
        ({"data": 6, "replicas": 4}, "4 does not divide 6"),
        ({"data": 4, "context": 2, "expert": 3}, "3 does not divide 8"),
    ],
)
def test_what_cannot_be_is_refused(given, said):
    with pytest.raises(BadValue, match=said):
        Setup(**given)
