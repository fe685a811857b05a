"""Towers take the time of what is trained in them, and a single one that of the model alone."""

import msgspec
import pytest

from holdfast.errors import BadValue
from holdfast.plan.hardware import Cluster
from holdfast.plan.models import known
from holdfast.plan.setup import Setup
from holdfast.plan.time import step
from holdfast.plan.tower_time import step_of
from holdfast.plan.towers import Lora, Tower, known_towers
from holdfast.plan.traffic import Part

EIGHT = Cluster.parse("8 A100-80G")
SETUP = Setup(data=8, micro_batch=4, sequence=2048)
MODEL = known("llama2-7b")
WHOLE = Tower(model=MODEL)


def test_one_tower_is_the_model():
    one, other = step_of((WHOLE,), SETUP, EIGHT), step(MODEL, SETUP, EIGHT)
    assert one.seconds == pytest.approx(other.seconds)
    assert (one.mfu, one.hfu) == (pytest.approx(other.mfu), pytest.approx(other.hfu))
    assert one.exposed == pytest.approx(other.exposed)


def test_adapters_save_a_third_of_the_products_and_the_reduction():
    lora = msgspec.structs.replace(WHOLE, trained=False, lora=Lora(rank=16))
    whole, less = step_of((WHOLE,), SETUP, EIGHT), step_of((lora,), SETUP, EIGHT)
    assert 0.6 < less.compute / whole.compute < 0.72
    assert Part.REDUCE not in less.exposed
    assert less.exposed[Part.GATHER] == pytest.approx(whole.exposed[Part.GATHER], rel=0.4)
    assert less.optimizer < whole.optimizer
    assert less.mfu <= less.hfu <= 1


def test_what_is_frozen_before_all_that_is_trained_goes_forward_alone():
    frozen = msgspec.structs.replace(WHOLE, trained=False)
    one = step_of((WHOLE,), SETUP, EIGHT).compute
    assert step_of((frozen, WHOLE), SETUP, EIGHT).compute / one == pytest.approx(4 / 3, rel=0.03)
    assert step_of((WHOLE, frozen), SETUP, EIGHT).compute / one == pytest.approx(5 / 3, rel=0.03)


def test_an_image_tower_is_a_small_part_of_llava():
    towers = known_towers("llava-1.5-7b")
    both, alone = step_of(towers, SETUP, EIGHT), step_of(towers[-1:], SETUP, EIGHT)
    assert 1 < both.seconds / alone.seconds < 1.1
    assert sum((both.compute, both.communication, both.bubble, both.optimizer, both.waiting)) == pytest.approx(
        both.seconds
    )


@pytest.mark.parametrize(
    ("towers", "setup", "why"),
    [
        ((), SETUP, "there has to be one"),
        ((WHOLE,), Setup(data=4, pipeline=2), "a pipeline over towers"),
        ((WHOLE,), Setup(data=4), "it needs 4 GPUs, not 8"),
    ],
)
def test_what_cannot_be_is_refused(towers, setup, why):
    with pytest.raises(BadValue, match=why):
        step_of(towers, setup, EIGHT)
