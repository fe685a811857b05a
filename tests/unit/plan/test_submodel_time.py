"""Step time of submodels depends on their trained parts; one submodel equals the plain model."""

import msgspec
import pytest

from holdfast.core.errors import InvalidValue
from holdfast.plan.hardware import Cluster
from holdfast.plan.models import get_known_model
from holdfast.plan.setup import TrainingSetup
from holdfast.plan.step_time.estimate import estimate_step_time
from holdfast.plan.step_time.submodel_time import estimate_submodels_step_time
from holdfast.plan.step_time.traffic import TrafficKind
from holdfast.plan.submodels import Lora, Submodel, get_known_submodels

EIGHT = Cluster.parse("8 A100-80G")
SETUP = TrainingSetup(data=8, micro_batch=4, sequence=2048)
MODEL = get_known_model("llama2-7b")
WHOLE = Submodel(model=MODEL)


def test_single_submodel_equals_the_model():
    one, other = (
        estimate_submodels_step_time((WHOLE,), SETUP, EIGHT),
        estimate_step_time(MODEL, SETUP, EIGHT),
    )
    assert one.seconds == pytest.approx(other.seconds)
    assert (one.mfu, one.hfu) == (pytest.approx(other.mfu), pytest.approx(other.hfu))
    assert one.exposed == pytest.approx(other.exposed)


def test_adapters_save_a_third_of_the_matmuls_and_the_gradient_reduction():
    lora = msgspec.structs.replace(WHOLE, trained=False, lora=Lora(rank=16))
    full, adapters = (
        estimate_submodels_step_time((WHOLE,), SETUP, EIGHT),
        estimate_submodels_step_time((lora,), SETUP, EIGHT),
    )
    assert 0.6 < adapters.compute / full.compute < 0.72
    assert TrafficKind.REDUCE not in adapters.exposed
    assert adapters.exposed[TrafficKind.GATHER] == pytest.approx(
        full.exposed[TrafficKind.GATHER], rel=0.4
    )
    assert adapters.optimizer < full.optimizer
    assert adapters.mfu <= adapters.hfu <= 1


def test_leading_frozen_submodel_has_no_backward():
    frozen = msgspec.structs.replace(WHOLE, trained=False)
    one = estimate_submodels_step_time((WHOLE,), SETUP, EIGHT).compute
    assert estimate_submodels_step_time(
        (frozen, WHOLE), SETUP, EIGHT
    ).compute / one == pytest.approx(4 / 3, rel=0.03)
    assert estimate_submodels_step_time(
        (WHOLE, frozen), SETUP, EIGHT
    ).compute / one == pytest.approx(5 / 3, rel=0.03)


def test_vision_model_is_a_small_part_of_llava():
    submodels = get_known_submodels("llava-1.5-7b")
    both, alone = (
        estimate_submodels_step_time(submodels, SETUP, EIGHT),
        estimate_submodels_step_time(submodels[-1:], SETUP, EIGHT),
    )
    assert 1 < both.seconds / alone.seconds < 1.1
    assert sum(
        (both.compute, both.communication, both.bubble, both.optimizer, both.waiting)
    ) == pytest.approx(both.seconds)


@pytest.mark.parametrize(
    ("submodels", "setup", "why"),
    [
        ((), SETUP, "at least one is required"),
        ((WHOLE,), TrainingSetup(data=4, pipeline=2), "--pipeline 2: only plain"),
        ((WHOLE,), TrainingSetup(data=4), "it needs 4 GPUs, not 8"),
    ],
)
def test_invalid_input_is_rejected(submodels, setup, why):
    with pytest.raises(InvalidValue, match=why):
        estimate_submodels_step_time(submodels, setup, EIGHT)
