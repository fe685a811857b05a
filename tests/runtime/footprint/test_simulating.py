"""Two ways to the same peak: a run of the module on fake tensors, and the formulas."""

import importlib.util
from functools import cache
from pathlib import Path

import msgspec
import pytest
import torch

from holdfast.errors import BadValue
from holdfast.plan.memory import Answer, footprint
from holdfast.plan.setup import FULL_PRECISION, Offload, Precision, Recompute, Setup, Strategy
from holdfast.plan.simulated import differences
from holdfast.runtime.footprint import simulating, tracking
from holdfast.runtime.footprint.kernels import as_on_a_gpu

_SPEC = importlib.util.spec_from_file_location("small_models", Path(__file__).with_name("small_models.py"))
small = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(small)

RUN = Setup(data=8, micro_batch=2, sequence=512)


@cache
def simulate(build, setup):
    with as_on_a_gpu(setup):
        return simulating.simulate("small_models", build, setup, None, lambda _: None)


def two_ways(build, setup):
    """Bytes of tensors by the formulas and as simulated."""
    found = simulate(build, setup)
    return footprint(found.model.transformer, setup).worst.tensors, found


@pytest.mark.slow
@pytest.mark.parametrize(("recompute", "build"), [
    (Recompute.NONE, small.llama), (Recompute.FULL, small.four_layers),
    pytest.param(Recompute.OPERATIONS, small.llama, marks=pytest.mark.matrix),
])  # fmt: skip
def test_formulas_and_run_agree(recompute, build):
    setup = msgspec.structs.replace(RUN, recompute=recompute)
    formula, found = two_ways(build, setup)
    assert formula == pytest.approx(found.footprint.worst.tensors, rel=0.02)
    assert differences(footprint(found.model.transformer, setup).worst, found.footprint.worst) == ()


@pytest.mark.matrix
@pytest.mark.parametrize("changes", [
    {"replicas": 2, "accumulation": 2},
    {"strategy": Strategy.DDP, "precision": FULL_PRECISION},
    {"strategy": Strategy.DDP, "precision": FULL_PRECISION, "bucket_views": True},
    {"precision": Precision(compute=2, master=0, gradient=2, reduced=2, state=2), "reshard": False},
], ids=["hybrid", "ddp", "views", "bf16"])  # fmt: skip
def test_they_agree_under_other_strategies(changes):
    formula, found = two_ways(small.llama, msgspec.structs.replace(RUN, **changes))
    assert formula == pytest.approx(found.footprint.worst.tensors, rel=0.05)


@pytest.mark.matrix
def test_dropout_and_a_tied_head_agree():
    formula, found = two_ways(small.gpt, msgspec.structs.replace(RUN, dropout=True))
    assert formula == pytest.approx(found.footprint.worst.tensors, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [
    Recompute.NONE, pytest.param(Recompute.SECOND_LAYER, marks=pytest.mark.matrix)
])  # fmt: skip
def test_two_depths_give_a_third(recompute, monkeypatch):
    setup = msgspec.structs.replace(RUN, recompute=recompute)
    line = simulate(small.llama, setup)
    assert (line.depths, line.layers) == ((4, 6), 8)
    monkeypatch.setattr(simulating, "DEPTHS", (4, 8))
    whole = simulate(small.eight_layers, setup)
    assert whole.depths == (8,)
    assert line.peaks == pytest.approx(whole.peaks, rel=0.005)
    assert line.footprint.worst.tensors == pytest.approx(whole.footprint.worst.tensors, rel=0.005)


def test_shapes_of_whole_tensors_are_no_memory():
    """The optimizer's step holds shares alone, where DTensor looks at whole ones."""
    found = simulate(small.llama, RUN)
    # Weights, their gradients, Adam's two and one that foreach makes.
    assert found.peaks["step"] == pytest.approx(5 * 4 * found.model.params / 8, rel=0.05)


def test_a_module_without_a_known_form_is_run_all_the_same():
    found = simulate(small.images, Setup(strategy=Strategy.DDP, data=2, micro_batch=4, precision=FULL_PRECISION))
    worst = found.footprint.worst
    weights = 4 * found.model.params
    assert worst.parameters == pytest.approx(weights, rel=0.02)
    assert worst.optimizer == pytest.approx(2 * weights, rel=0.02)
    assert found.depths == (0,)


@pytest.mark.matrix
@pytest.mark.parametrize("replicas", [1, 8])
def test_thousands_of_ranks_are_reckoned(replicas, monkeypatch):
    setup = msgspec.structs.replace(RUN, data=64 * replicas, replicas=replicas)
    whole = simulate(small.four_layers, setup)
    monkeypatch.setattr(simulating, "MOST_SHARDS", 8)
    with as_on_a_gpu(setup):
        reckoned = simulating.simulate("small_models", small.four_layers, setup, None, lambda _: None)
    assert reckoned.peaks == pytest.approx(whole.peaks, rel=0.005)


@pytest.mark.matrix
def test_a_module_that_asks_for_values_is_built_on_the_meta_device():
    found = simulate(small.asks_for_values, RUN)
    assert found.footprint.worst.tensors == simulate(small.four_layers, RUN).footprint.worst.tensors


def test_a_module_that_decides_by_a_value_is_said():
    with pytest.raises(BadValue, match=r"running its step failed at small_models\.py:\d+: .*no values to decide by"):
        simulate(small.decides, RUN)


def test_the_answer_has_a_margin():
    tight = simulate(small.llama, RUN).footprint
    enough, little = 2 * tight.worst.total, tight.worst.tensors // 2
    assert msgspec.structs.replace(tight, memory=enough).answer is Answer.FITS
    assert msgspec.structs.replace(tight, memory=little).answer is Answer.DOES_NOT_FIT
    assert tight.worst.reserve > 0


def test_parts_that_differ_are_named():
    found = simulate(small.llama, RUN)
    other = footprint(found.model.transformer, msgspec.structs.replace(RUN, recompute=Recompute.FULL)).worst
    assert [each.part for each in differences(other, found.footprint.worst)] == ["activations"]


@pytest.mark.parametrize(("changes", "why"), [
    ({"strategy": Strategy.ZERO3}, "zero3.*: FSDP2 and DDP can be run so"),
    ({"tensor": 2}, "how a module is divided so is not known"),
    ({"offload": Offload.OPTIMIZER}, "all fake tensors are on one device"),
    ({"precision": Precision(compute=1)}, "bf16 and fp32 can be run so"),
])  # fmt: skip
def test_what_cannot_be_run_is_said(changes, why):
    with pytest.raises(BadValue, match=why) as refused:
        simulate(small.llama, msgspec.structs.replace(RUN, **changes))
    assert "the closed formulas know it" in str(refused.value)


@pytest.mark.parametrize(("place", "name"), [
    ("torch.distributed._tools.fsdp2_mem_tracker", "FSDPMemTracker"),
    ("torch.distributed.tensor._sharding_prop.ShardingPropagator", "_propagate_tensor_meta_non_cached"),
])  # fmt: skip
def test_another_torch_is_said(monkeypatch, place, name):
    monkeypatch.delattr(f"{place}.{name}")
    with pytest.raises(BadValue, match=rf"torch {torch.__version__.split('+')[0]}.* has no .*{name}"):
        tracking.interfaces()
