"""A plan of a module of the user's own: what was counted of it and what a run of it says, with both made up here."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.actions.plan import module as plan_module
from holdfast.actions.plan.model import find
from holdfast.actions.plan.planning import plan
from holdfast.actions.plan.wish import Wish
from holdfast.errors import BadValue
from holdfast.plan.described import Described
from holdfast.plan.hardware import parse_mixed
from holdfast.plan.memory import footprint
from holdfast.plan.models import known
from holdfast.plan.setup import Strategy
from holdfast.plan.simulated import Simulated

GIB = 1 << 30
GPT2 = known("gpt2")


def described(**more):
    return Described(name="Net", params=GPT2.params, trained=GPT2.params, **more)


@pytest.fixture
def wish(monkeypatch):
    """Wishes for a module that is counted as is said; a run of it needs what gpt2 needs."""

    def simulate(_, setup, memory, **__):
        needs = footprint(GPT2, setup, memory)
        return Simulated(footprint=needs, model=described(), layers=12, depths=(1, 2), peaks={}, torch="2", took_s=3)

    def make(module, **more):
        monkeypatch.setattr(plan_module, "describe", lambda *_, **__: module)
        monkeypatch.setattr(plan_module, "simulate", simulate)
        more.setdefault("strategy", Strategy.FSDP2)
        return Wish(model=find("net.py:build", {}), on="8 A100", parts=parse_mixed("8 A100"), sequence=1024, **more)

    return make


def test_a_transformer_that_was_recognised_is_planned_as_one(wish):
    found = plan(wish(described(transformer=GPT2)))
    assert found.run.step is not None
    assert "12 layers 768 wide" in found.assumed[0]


def test_what_the_module_says_itself_is_planned(wish):
    """Norms that are written out keep more, and dropout its masks."""
    usual = plan(wish(described(transformer=GPT2))).run
    own = plan(wish(described(transformer=GPT2, own_norms=True, dropout=True))).run
    assert not own.setup.fused_norms
    assert own.setup.dropout
    assert own.footprint.worst.activations > usual.footprint.worst.activations


def test_the_run_is_told_beside_the_formulas(wish):
    found = plan(wish(described(transformer=GPT2), simulate=True))
    assert "from runs of 1 and 2 of 12 layers" in found.seen[0]
    assert found.seen[1].startswith("the formulas say")


def test_of_another_form_memory_is_as_it_was_run_and_time_is_not_known(wish):
    found = plan(wish(described(unknown=("it has no layers",)), batch=16))
    assert found.run.footprint == footprint(GPT2, found.run.setup, found.run.footprint.memory)
    assert (found.run.step, found.run.setup.micro_batch) == (None, 1)
    assert "not known" in found.run.why
    assert found.assumed[0] == "it has no layers"


@pytest.mark.parametrize(
    ("more", "said"),
    [({"sizes": (8, 16)}, "a curve of Net"), ({"parts": parse_mixed("2 A100 + 2 V100"), "batch": 8}, "several kinds")],
)
def test_what_needs_its_time_is_refused(wish, more, said):
    asked = msgspec.structs.replace(wish(described()), **more)
    with pytest.raises(BadValue, match=said):
        plan(asked)


def test_only_a_module_can_be_run():
    asked = Wish(model=find("gpt2", {}), on="8 A100", parts=parse_mixed("8 A100"), sequence=128, simulate=True,
                 strategy=Strategy.DDP)  # fmt: skip
    with pytest.raises(BadValue, match="only a module of your own"):
        plan(asked)
