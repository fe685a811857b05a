"""What each change would save and what speed it would cost."""

from __future__ import annotations

import pytest

from holdfast.plan.hardware import Cluster
from holdfast.plan.memory import footprint
from holdfast.plan.models import known
from holdfast.plan.relief import relief
from holdfast.plan.setup import Recompute, Setup, Strategy
from holdfast.plan.time import step

GIB = 1 << 30
MODEL, CLUSTER = known("llama3.1-8b"), Cluster.parse("8 H100")


def asked(setup, missing=None, gib=80):
    return relief(
        lambda run: footprint(MODEL, run, gib * GIB), lambda run: step(MODEL, run, CLUSTER.resized(run.world_size)),
        setup, missing,
    )  # fmt: skip


def test_what_is_enough_comes_first_and_what_loses_least_before_what_loses_more():
    found = asked(Setup(data=8, micro_batch=2, sequence=8192))
    enough = [option.enough for option in found.options]
    assert enough == sorted(enough, reverse=True)
    assert any(enough)
    lost = [option.lost for option in found.options if option.enough]
    assert lost == sorted(lost)
    names = [option.change.what for option in found.options]
    assert names.index("compute the loss in chunks") < names.index("recompute cheap operations")


def test_what_is_saved_and_lost_is_what_the_models_say():
    setup = Setup(data=8, micro_batch=2, sequence=8192)
    option = next(each for each in asked(setup).options if each.change.what == "recompute whole layers")
    again = Setup(data=8, micro_batch=2, sequence=8192, recompute=Recompute.FULL)
    assert option.saved == footprint(MODEL, setup).worst.total - footprint(MODEL, again).worst.total
    speeds = [step(MODEL, each, CLUSTER).tokens_per_s_per_gpu for each in (setup, again)]
    assert option.lost == pytest.approx(1 - speeds[1] / speeds[0])
    assert 0.1 < option.lost < 0.35


def test_what_the_error_says_was_wanting_has_to_be_saved_too():
    setup = Setup(data=8, micro_batch=1, sequence=8192)
    usual = {option.change.what: option.enough for option in asked(setup).options}
    wanting = {option.change.what: option.enough for option in asked(setup, missing=20 * GIB).options}
    assert usual["compute the loss in chunks"]
    assert not wanting["compute the loss in chunks"]  # 11 GiB less
    assert wanting["recompute cheap operations"]


def test_where_nothing_is_enough_alone_several_are_told_together():
    found = asked(Setup(strategy=Strategy.DDP, data=8, sequence=8192, micro_batch=2), gib=16)
    assert not any(option.enough for option in found.options)
    assert len(found.together) > 1
    assert asked(Setup(data=8, micro_batch=2, sequence=8192)).together == ()


def test_a_time_that_is_not_known_comes_last():
    setup = Setup(data=8, micro_batch=2, sequence=8192)
    found = relief(
        lambda run: footprint(MODEL, run, 80 * GIB), lambda run: step(MODEL, run, Cluster.parse("8 H100")), setup
    )
    unknown = [option for option in found.options if option.lost is None]
    assert {option.change.setup.world_size for option in unknown} == {16, 32}
    assert found.options[-1].lost is None
