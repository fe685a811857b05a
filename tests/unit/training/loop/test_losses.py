"""Which losses count as NaN, Inf and spike, and which do not."""

from __future__ import annotations

import math
import random

import pytest
import torch

from holdfast.training.loop import oom_detection
from holdfast.training.loop.loss_monitor import LossMonitor, PendingLosses
from holdfast.training.loop.micro_batches import split_batch


def fed(losses, values, first=1):
    """What is said of each value."""
    return [losses.add(step, value) for step, value in enumerate(values, start=first)]


def noisy(count, seed=0):
    """A loss that falls, with noise."""
    source = random.Random(seed)
    return [2 * math.exp(-step / 200) + 0.5 + source.gauss(0, 0.05) for step in range(count)]


@pytest.mark.parametrize(
    ("value", "what"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "inf")]
)
def test_one_value_that_is_not_finite_is_enough(value, what):
    losses = LossMonitor(None)
    assert fed(losses, [3.0, 2.0]) == [None, None]
    bad = losses.add(3, value)
    assert (bad.what, bad.first, bad.last, bad.usual) == (what, 3, 3, 2.5)


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_spike(seed):
    assert set(fed(LossMonitor(10.0), noisy(2000, seed))) == {None}


def test_a_persistent_spike_is_reported_with_its_steps():
    losses = LossMonitor(10.0)
    assert set(fed(losses, noisy(200))) == {None}
    said = fed(losses, [6.0, 7.0, 6.5], first=201)
    assert said[:2] == [None, None]
    assert (said[2].what, said[2].first, said[2].last, said[2].value) == ("spike", 201, 203, 7.0)
    assert 1.0 < said[2].usual < 2.0


def test_one_or_two_bad_batches_are_no_spike():
    losses = LossMonitor(10.0)
    fed(losses, noisy(200))
    assert fed(losses, [9.0, 9.0, 1.2, 9.0, 9.0, 1.2], first=201) == [None] * 6


def test_no_spike_without_enough_history():
    assert set(fed(LossMonitor(10.0), [1.0] * 63 + [50.0] * 3)) == {None}
    assert fed(LossMonitor(10.0), [1.0] * 64 + [50.0] * 3)[-1] is not None


def test_spike_none_disables_detection():
    assert set(fed(LossMonitor(None), [1.0] * 100 + [1e9] * 10)) == {None}


def test_a_very_smooth_curve_may_rise_by_half():
    assert set(fed(LossMonitor(10.0), [1.0] * 100 + [1.45] * 5)) == {None}
    assert fed(LossMonitor(10.0), [1.0] * 100 + [1.55] * 3)[-1].what == "spike"


def test_losses_are_read_in_order():
    reported = PendingLosses()
    reported.put(1, 2)
    reported.put(2, torch.tensor([1.0, 3.0], requires_grad=True))
    reported.put(3, torch.tensor(4.0))
    assert reported.last_shareable(3, waits=False) == 3
    assert reported.take(2) == {1: 2.0, 2: 2.0}
    assert reported.take(9) == {3: 4.0}
    assert reported.take(9) == {}


# Pieces of a batch


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 100])
@pytest.mark.parametrize("size", [1, 2, 7, 8])
def test_micro_batches_add_up_to_the_batch(count, size):
    batch = {
        "x": torch.arange(size * 3.0).reshape(size, 3),
        "names": [f"sample {n}" for n in range(size)],
        "k": 5,
    }
    found = list(split_batch(batch, count, None))
    assert torch.equal(torch.cat([part.data["x"] for part in found]), batch["x"])
    assert sum((part.data["names"] for part in found), []) == batch["names"]  # noqa: RUF017 - a handful
    assert {part.data["k"] for part in found} == {5}
    assert sum(part.weight for part in found) == pytest.approx(1)
    assert len(found) <= count
    assert len(found) == min(count, size) or size % count


def test_gradients_of_micro_batches_equal_those_of_the_batch():
    torch.manual_seed(0)
    model, batch = torch.nn.Linear(5, 1), torch.randn(7, 5)
    model(batch).square().mean().backward()
    whole = model.weight.grad.clone()
    model.zero_grad()
    for piece, weight in split_batch(batch, 3, model):
        (weight * model(piece).square().mean()).backward()
    torch.testing.assert_close(model.weight.grad, whole)


# Memory


def chained():
    try:
        try:
            torch.empty(1 << 60)
        except RuntimeError as error:
            raise ValueError("the step failed") from error
    except ValueError as error:
        return error


@pytest.mark.parametrize(
    ("error", "where"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "device"),
        (RuntimeError("CUDA error: out of memory"), "device"),
        (
            RuntimeError(
                "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
            ),
            "device",
        ),
        (MemoryError(), "host"),
        (OSError(12, "Cannot allocate memory"), "host"),
        (ValueError("the model has no memory of it"), ""),
        (KeyError("memory"), ""),
    ],
)
def test_out_of_memory_errors_are_classified(error, where):
    assert oom_detection.classify_oom(error) == where


def test_out_of_memory_is_classified_in_exception_causes():
    assert oom_detection.classify_oom(chained()) == "host"
