"""Changes that make a run fit into memory."""

import pytest

from holdfast.plan.advice.fitting import find_fitting_changes
from holdfast.plan.memory.estimate import MemoryFit, estimate_memory
from holdfast.plan.models import get_known_model
from holdfast.plan.setup import (
    ActivationCheckpointing,
    OffloadTarget,
    ShardingStrategy,
    TrainingSetup,
)

GIB = 1 << 30
CASES = [
    ("llama3.1-8b", TrainingSetup(data=8, micro_batch=4, sequence=8192), 80),
    ("llama2-70b", TrainingSetup(data=16, sequence=4096), 80),
    ("llama3.1-405b", TrainingSetup(data=64, replicas=2, micro_batch=2, sequence=8192), 80),
    (
        "llama2-7b",
        TrainingSetup(strategy=ShardingStrategy.DDP, data=8, sequence=4096, flash=False),
        24,
    ),
    ("mixtral-8x7b", TrainingSetup(data=8, sequence=4096, micro_batch=2), 40),
]


def fitting_changes(name, setup, gib):
    return find_fitting_changes(
        lambda run: estimate_memory(get_known_model(name), run, gib * GIB), setup
    )


@pytest.mark.parametrize(("name", "setup", "gib"), CASES)
def test_suggested_changes_make_the_run_fit(name, setup, gib):
    result = fitting_changes(name, setup, gib)
    assert result.combined[-1].memory.fit is MemoryFit.FITS
    for change in (*result.single, result.combined[-1]):
        assert estimate_memory(get_known_model(name), change.setup, gib * GIB).fit is MemoryFit.FITS


@pytest.mark.parametrize(("name", "setup", "gib"), CASES)
def test_savings_add_up_and_global_batch_is_constant(name, setup, gib):
    before = estimate_memory(get_known_model(name), setup)
    combined = fitting_changes(name, setup, gib).combined
    assert all(change.saved > 0 for change in combined)
    assert (
        sum(change.saved for change in combined)
        == before.worst.total - combined[-1].memory.worst.total
    )
    batches = [
        change.setup.global_batch
        for change in combined
        if change.setup.world_size == setup.world_size
    ]
    assert set(batches) == {setup.global_batch}


def test_cheap_changes_precede_expensive_ones():
    setup = TrainingSetup(
        data=8, micro_batch=2, sequence=8192, recompute=ActivationCheckpointing.OPERATIONS
    )
    single = [change.what for change in fitting_changes("llama3.1-8b", setup, 80).single]
    assert single[0] == "chunk the loss computation"
    assert (
        single.index("checkpoint activations of whole layers")
        < single.index("tensor parallelism 2")
        < single.index("use 32 GPUs")
    )
    assert "64 GPUs" not in single


def test_run_that_cannot_fit_is_reported():
    setup = TrainingSetup(
        strategy=ShardingStrategy.DDP,
        sequence=4096,
        recompute=ActivationCheckpointing.FULL,
        offload=OffloadTarget.OPTIMIZER,
    )
    result = fitting_changes("llama2-70b", setup, 24)
    assert result.single == ()
    assert all(change.memory.fit is MemoryFit.DOES_NOT_FIT for change in result.combined)


def test_applied_changes_are_not_suggested():
    setup = TrainingSetup(
        data=8,
        recompute=ActivationCheckpointing.FULL,
        offload=OffloadTarget.PARAMETERS,
        sequence=65536,
    )
    suggested = {change.what for change in fitting_changes("llama2-7b", setup, 16).combined}
    assert not {what for what in suggested if what.startswith(("recompute", "parameters", "FSDP2"))}
