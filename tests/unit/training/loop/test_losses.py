"""Classification of losses as NaN, Inf or spike; batch splitting; out-of-memory detection."""

from __future__ import annotations

import math
import random

import pytest
import torch

from holdfast.training.loop import oom_detection
from holdfast.training.loop.loss_monitor import LossMonitor, PendingLosses
from holdfast.training.loop.micro_batches import split_batch


def reports(losses, values, first=1):
    """Return the report on each value."""
    return [losses.add(step, value) for step, value in enumerate(values, start=first)]


def noisy(count, seed=0):
    """Return decreasing losses with noise."""
    source = random.Random(seed)
    return [2 * math.exp(-step / 200) + 0.5 + source.gauss(0, 0.05) for step in range(count)]


@pytest.mark.parametrize(
    ("value", "what"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "inf")]
)
def test_one_non_finite_value_is_reported(value, what):
    losses = LossMonitor(None)
    assert reports(losses, [3.0, 2.0]) == [None, None]
    bad = losses.add(3, value)
    assert (bad.what, bad.first, bad.last, bad.usual) == (what, 3, 3, 2.5)


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_not_a_spike(seed):
    assert set(reports(LossMonitor(10.0), noisy(2000, seed))) == {None}


def test_a_persistent_spike_is_reported_with_its_steps():
    losses = LossMonitor(10.0)
    assert set(reports(losses, noisy(200))) == {None}
    findings = reports(losses, [6.0, 7.0, 6.5], first=201)
    assert findings[:2] == [None, None]
    assert (findings[2].what, findings[2].first, findings[2].last, findings[2].value) == (
        "spike",
        201,
        203,
        7.0,
    )
    assert 1.0 < findings[2].usual < 2.0


def test_one_or_two_bad_batches_are_not_a_spike():
    losses = LossMonitor(10.0)
    reports(losses, noisy(200))
    assert reports(losses, [9.0, 9.0, 1.2, 9.0, 9.0, 1.2], first=201) == [None] * 6


def test_no_spike_without_enough_history():
    assert set(reports(LossMonitor(10.0), [1.0] * 63 + [50.0] * 3)) == {None}
    assert reports(LossMonitor(10.0), [1.0] * 64 + [50.0] * 3)[-1] is not None


def test_spike_none_disables_detection():
    assert set(reports(LossMonitor(None), [1.0] * 100 + [1e9] * 10)) == {None}


def test_50_percent_rise_of_a_smooth_curve_is_not_a_spike():
    assert set(reports(LossMonitor(10.0), [1.0] * 100 + [1.45] * 5)) == {None}
    assert reports(LossMonitor(10.0), [1.0] * 100 + [1.55] * 3)[-1].what == "spike"


def test_losses_are_read_in_order():
    reported = PendingLosses()
    reported.put(1, 2)
    reported.put(2, torch.tensor([1.0, 3.0], requires_grad=True))
    reported.put(3, torch.tensor(4.0))
    assert reported.last_shareable(3, waits=False) == 3
    assert reported.take(2) == {1: 2.0, 2: 2.0}
    assert reported.take(9) == {3: 4.0}
    assert reported.take(9) == {}


# Micro-batches


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 100])
@pytest.mark.parametrize("size", [1, 2, 7, 8])
def test_micro_batches_add_up_to_the_batch(count, size):
    batch = {
        "x": torch.arange(size * 3.0).reshape(size, 3),
        "names": [f"sample {n}" for n in range(size)],
        "k": 5,
    }
    parts = list(split_batch(batch, count, None))
    assert torch.equal(torch.cat([part.data["x"] for part in parts]), batch["x"])
    assert sum((part.data["names"] for part in parts), []) == batch["names"]  # noqa: RUF017 - few elements
    assert {part.data["k"] for part in parts} == {5}
    assert sum(part.weight for part in parts) == pytest.approx(1)
    assert len(parts) <= count
    assert len(parts) == min(count, size) or size % count


def test_gradients_of_micro_batches_equal_those_of_the_batch():
    torch.manual_seed(0)
    model, batch = torch.nn.Linear(5, 1), torch.randn(7, 5)
    model(batch).square().mean().backward()
    full_batch_gradient = model.weight.grad.clone()
    model.zero_grad()
    for piece, weight in split_batch(batch, 3, model):
        (weight * model(piece).square().mean()).backward()
    torch.testing.assert_close(model.weight.grad, full_batch_gradient)


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
