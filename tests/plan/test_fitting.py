"""What would make a run fit."""

import pytest

from holdfast.plan.fitting import what_would_fit
from holdfast.plan.memory import Answer, footprint
from holdfast.plan.models import known
from holdfast.plan.setup import Offload, Recompute, Setup, Strategy

GIB = 1 << 30
CASES = [
    ("llama3.1-8b", Setup(data=8, micro_batch=4, sequence=8192), 80),
    ("llama2-70b", Setup(data=16, sequence=4096), 80),
    ("llama3.1-405b", Setup(data=64, replicas=2, micro_batch=2, sequence=8192), 80),
    ("llama2-7b", Setup(strategy=Strategy.DDP, data=8, sequence=4096, flash=False), 24),
    ("mixtral-8x7b", Setup(data=8, sequence=4096, micro_batch=2), 40),
]


def ways(name, setup, gib):
    return what_would_fit(lambda run: footprint(known(name), run, gib * GIB), setup)


@pytest.mark.parametrize(("name", "setup", "gib"), CASES)
def test_changes_make_it_fit(name, setup, gib):
    found = ways(name, setup, gib)
    assert found.together[-1].needs.answer is Answer.FITS
    for change in (*found.alone, found.together[-1]):
        assert footprint(known(name), change.setup, gib * GIB).answer is Answer.FITS


@pytest.mark.parametrize(("name", "setup", "gib"), CASES)
def test_what_is_saved_adds_up_and_the_batch_stays(name, setup, gib):
    before = footprint(known(name), setup)
    together = ways(name, setup, gib).together
    assert all(change.saved > 0 for change in together)
    assert sum(change.saved for change in together) == before.worst.total - together[-1].needs.worst.total
    same = [change.setup.global_batch for change in together if change.setup.world_size == setup.world_size]
    assert set(same) == {setup.global_batch}


def test_a_cheap_change_is_named_before_a_dear_one():
    setup = Setup(data=8, micro_batch=2, sequence=8192, recompute=Recompute.OPERATIONS)
    alone = [change.what for change in ways("llama3.1-8b", setup, 80).alone]
    assert alone[0] == "compute the loss in chunks"
    assert alone.index("recompute whole layers") < alone.index("tensor parallelism of 2") < alone.index("32 GPUs")
    assert "64 GPUs" not in alone


def test_what_cannot_be_made_to_fit_says_so():
    setup = Setup(strategy=Strategy.DDP, sequence=4096, recompute=Recompute.FULL, offload=Offload.OPTIMIZER)
    found = ways("llama2-70b", setup, 24)
    assert found.alone == ()
    assert all(change.needs.answer is Answer.DOES_NOT_FIT for change in found.together)


def test_what_is_done_already_is_not_advised():
    setup = Setup(data=8, recompute=Recompute.FULL, offload=Offload.PARAMETERS, sequence=65536)
    said = {change.what for change in ways("llama2-7b", setup, 16).together}
    assert not {what for what in said if what.startswith(("recompute", "parameters", "FSDP2"))}
