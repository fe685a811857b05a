"""Plans of a user's module; its counts and its simulated run are stubs."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core.errors import InvalidValue
from holdfast.plan.hardware import parse_clusters
from holdfast.plan.memory.estimate import estimate_memory
from holdfast.plan.model_counts import ModuleSummary
from holdfast.plan.models import get_known_model
from holdfast.plan.request import module as plan_module
from holdfast.plan.request.model import find_model
from holdfast.plan.request.plan_request import PlanRequest
from holdfast.plan.request.planning import make_plan
from holdfast.plan.setup import ShardingStrategy
from holdfast.plan.simulated_step import SimulatedStep

GIB = 1 << 30
GPT2 = get_known_model("gpt2")


def module_summary(**more):
    return ModuleSummary(name="Net", params=GPT2.params, trained=GPT2.params, **more)


@pytest.fixture
def make_request(monkeypatch):
    """Return a factory of requests for a module; its simulated run uses the memory of gpt2."""

    def simulate(_, setup, memory, **__):
        estimate = estimate_memory(GPT2, setup, memory)
        return SimulatedStep(
            memory=estimate,
            model=module_summary(),
            layers=12,
            depths=(1, 2),
            peaks={},
            torch="2",
            duration_s=3,
        )

    def make(module, **more):
        monkeypatch.setattr(plan_module, "describe_module", lambda *_, **__: module)
        monkeypatch.setattr(plan_module, "simulate_step", simulate)
        more.setdefault("strategy", ShardingStrategy.FSDP2)
        return PlanRequest(
            model=find_model("net.py:build", {}),
            cluster_text="8 A100",
            clusters=parse_clusters("8 A100"),
            sequence=1024,
            **more,
        )

    return make


def test_recognized_transformer_is_planned_as_one(make_request):
    result = make_plan(make_request(module_summary(transformer=GPT2)))
    assert result.run.step is not None
    assert "12 layers, hidden size 768" in result.assumed[0]


def test_module_properties_are_planned(make_request):
    """Unfused norms save more activations, and dropout saves its masks."""
    default = make_plan(make_request(module_summary(transformer=GPT2))).run
    own = make_plan(
        make_request(module_summary(transformer=GPT2, unfused_norms=True, dropout=True))
    ).run
    assert not own.setup.fused_norms
    assert own.setup.dropout
    assert own.memory.worst.activations > default.memory.worst.activations


def test_simulation_is_compared_with_formulas(make_request):
    result = make_plan(make_request(module_summary(transformer=GPT2), simulate=True))
    assert "from runs of 1 and 2 of 12 layers" in result.simulation_notes[0]
    assert result.simulation_notes[1].startswith("formulas: ")


def test_unknown_architecture_has_simulated_memory_and_no_time(make_request):
    result = make_plan(make_request(module_summary(unknown=("it has no layers",)), batch=16))
    assert result.run.memory == estimate_memory(
        GPT2, result.run.setup, result.run.memory.gpu_memory
    )
    assert (result.run.step, result.run.setup.micro_batch) == (None, 1)
    assert "unknown" in result.run.no_time_reason
    assert result.assumed[0] == "it has no layers"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"gpu_counts": (8, 16)}, "a scaling curve of Net"),
        ({"clusters": parse_clusters("2 A100 + 2 V100"), "batch": 8}, "several kinds"),
    ],
)
def test_features_that_need_step_time_are_rejected(make_request, more, expected):
    request = msgspec.structs.replace(make_request(module_summary()), **more)
    with pytest.raises(InvalidValue, match=expected):
        make_plan(request)


def test_only_modules_can_be_simulated():
    request = PlanRequest(
        model=find_model("gpt2", {}),
        cluster_text="8 A100",
        clusters=parse_clusters("8 A100"),
        sequence=128,
        simulate=True,
        strategy=ShardingStrategy.DDP,
    )
    with pytest.raises(InvalidValue, match="only a user's module"):
        make_plan(request)
