"""Compare two predictions of a memory peak: a run on fake tensors, and the formulas."""

import importlib.util
from functools import cache
from pathlib import Path

import msgspec
import pytest
import torch

from holdfast.core.errors import InvalidValue
from holdfast.plan.memory.estimate import MemoryFit, estimate_memory
from holdfast.plan.setup import (
    FP32_PRECISION,
    ActivationCheckpointing,
    OffloadTarget,
    Precision,
    ShardingStrategy,
    TrainingSetup,
)
from holdfast.plan.simulated_step import find_differences
from holdfast.plan.torch_tracing import simulation, tracking
from holdfast.plan.torch_tracing.kernels import emulate_gpu_kernels

_SPEC = importlib.util.spec_from_file_location(
    "small_models", Path(__file__).with_name("small_models.py")
)
small = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(small)

RUN = TrainingSetup(data=8, micro_batch=2, sequence=512)


@cache
def simulate(build, setup):
    with emulate_gpu_kernels(setup):
        return simulation.simulate_module("small_models", build, setup, None, lambda _: None)


def both_predictions(build, setup):
    """Return bytes of tensors by the formulas and by the simulation."""
    result = simulate(build, setup)
    return estimate_memory(result.model.transformer, setup).worst.tensors, result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recompute", "build"),
    [
        (ActivationCheckpointing.NONE, small.llama),
        (ActivationCheckpointing.FULL, small.four_layers),
        pytest.param(ActivationCheckpointing.OPERATIONS, small.llama, marks=pytest.mark.matrix),
    ],
)
def test_formulas_match_simulation(recompute, build):
    setup = msgspec.structs.replace(RUN, recompute=recompute)
    formula, result = both_predictions(build, setup)
    assert formula == pytest.approx(result.memory.worst.tensors, rel=0.02)
    assert (
        find_differences(
            estimate_memory(result.model.transformer, setup).worst, result.memory.worst
        )
        == ()
    )


@pytest.mark.matrix
@pytest.mark.parametrize(
    "changes",
    [
        {"replicas": 2, "accumulation": 2},
        {"strategy": ShardingStrategy.DDP, "precision": FP32_PRECISION},
        {"strategy": ShardingStrategy.DDP, "precision": FP32_PRECISION, "bucket_views": True},
        {
            "precision": Precision(compute=2, master=0, gradient=2, reduced=2, state=2),
            "reshard": False,
        },
    ],
    ids=["hybrid", "ddp", "views", "bf16"],
)
def test_formulas_match_simulation_under_other_strategies(changes):
    formula, result = both_predictions(small.llama, msgspec.structs.replace(RUN, **changes))
    assert formula == pytest.approx(result.memory.worst.tensors, rel=0.05)


@pytest.mark.matrix
def test_dropout_and_a_tied_head_agree():
    formula, result = both_predictions(small.gpt, msgspec.structs.replace(RUN, dropout=True))
    assert formula == pytest.approx(result.memory.worst.tensors, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "recompute",
    [
        ActivationCheckpointing.NONE,
        pytest.param(ActivationCheckpointing.SECOND_LAYER, marks=pytest.mark.matrix),
    ],
)
def test_two_depths_extrapolate_to_a_third(recompute, monkeypatch):
    setup = msgspec.structs.replace(RUN, recompute=recompute)
    line = simulate(small.llama, setup)
    assert (line.depths, line.layers) == ((4, 6), 8)
    monkeypatch.setattr(simulation, "DEPTHS", (4, 8))
    complete = simulate(small.eight_layers, setup)
    assert complete.depths == (8,)
    assert line.peaks == pytest.approx(complete.peaks, rel=0.005)
    assert line.memory.worst.tensors == pytest.approx(complete.memory.worst.tensors, rel=0.005)


def test_dtensor_shape_propagation_is_not_counted():
    """The optimizer step holds only shards, although DTensor propagates unsharded shapes."""
    result = simulate(small.llama, RUN)
    # Weights, gradients, Adam's two states, and the temporary of foreach.
    assert result.peaks["step"] == pytest.approx(5 * 4 * result.model.params / 8, rel=0.05)


def test_unrecognized_module_is_simulated():
    result = simulate(
        small.images,
        TrainingSetup(
            strategy=ShardingStrategy.DDP, data=2, micro_batch=4, precision=FP32_PRECISION
        ),
    )
    worst = result.memory.worst
    weights = 4 * result.model.params
    assert worst.parameters == pytest.approx(weights, rel=0.02)
    assert worst.optimizer == pytest.approx(2 * weights, rel=0.02)
    assert result.depths == (0,)


@pytest.mark.matrix
@pytest.mark.parametrize("replicas", [1, 8])
def test_thousands_of_ranks_are_scaled(replicas, monkeypatch):
    setup = msgspec.structs.replace(RUN, data=64 * replicas, replicas=replicas)
    complete = simulate(small.four_layers, setup)
    monkeypatch.setattr(simulation, "MAX_SHARDS", 8)
    with emulate_gpu_kernels(setup):
        scaled = simulation.simulate_module(
            "small_models", small.four_layers, setup, None, lambda _: None
        )
    assert scaled.peaks == pytest.approx(complete.peaks, rel=0.005)


@pytest.mark.matrix
def test_module_that_reads_values_is_built_on_meta():
    result = simulate(small.reads_values, RUN)
    assert result.memory.worst.tensors == simulate(small.four_layers, RUN).memory.worst.tensors


def test_data_dependent_module_is_reported():
    with pytest.raises(
        InvalidValue,
        match=r"running its step failed at small_models\.py:\d+: .*fake tensors have no values",
    ):
        simulate(small.data_dependent, RUN)


def test_fit_has_a_margin():
    tight = simulate(small.llama, RUN).memory
    enough, little = 2 * tight.worst.total, tight.worst.tensors // 2
    assert msgspec.structs.replace(tight, gpu_memory=enough).fit is MemoryFit.FITS
    assert msgspec.structs.replace(tight, gpu_memory=little).fit is MemoryFit.DOES_NOT_FIT
    assert tight.worst.reserve > 0


def test_parts_that_differ_are_reported():
    result = simulate(small.llama, RUN)
    other = estimate_memory(
        result.model.transformer,
        msgspec.structs.replace(RUN, recompute=ActivationCheckpointing.FULL),
    ).worst
    assert [each.part for each in find_differences(other, result.memory.worst)] == ["activations"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"strategy": ShardingStrategy.ZERO3}, "zero3.*: only FSDP2 and DDP can be simulated"),
        ({"tensor": 2}, "how it divides the module is unknown"),
        ({"offload": OffloadTarget.OPTIMIZER}, "all fake tensors are on one device"),
        ({"precision": Precision(compute=1)}, "only bf16 and fp32 can be simulated"),
    ],
)
def test_unsupported_setups_are_rejected(changes, why):
    with pytest.raises(InvalidValue, match=why) as raised:
        simulate(small.llama, msgspec.structs.replace(RUN, **changes))
    assert "use the closed formulas, which support it" in str(raised.value)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("torch.distributed._tools.fsdp2_mem_tracker", "FSDPMemTracker"),
        (
            "torch.distributed.tensor._sharding_prop.ShardingPropagator",
            "_propagate_tensor_meta_non_cached",
        ),
    ],
)
def test_missing_torch_internal_is_reported(monkeypatch, place, name):
    monkeypatch.delattr(f"{place}.{name}")
    with pytest.raises(
        InvalidValue, match=rf"torch {torch.__version__.split('+')[0]}.* has no .*{name}"
    ):
        tracking.load_torch_internals()
