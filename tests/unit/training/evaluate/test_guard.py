"""Evaluation in one process: results, sinks, invalid options, and AsyncEvaluation."""

from __future__ import annotations

import threading
from math import nan
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast
from holdfast.core.errors import InvalidValue
from holdfast.training.evaluate import AsyncEvaluation, Evaluation

DATA = TensorDataset(torch.arange(10.0)[:, None])


class RecordingSink:
    """A sink that records writes, and then raises if ``fails``."""

    def __init__(self, *, fails: bool = False) -> None:
        self.records: list[tuple[int, dict[str, float]]] = []
        self.is_written, self.fails = threading.Event(), fails

    def write(self, step: int, metrics: Any) -> None:
        self.records.append((step, dict(metrics)))
        self.is_written.set()
        if self.fails:
            raise OSError("no space left on device")

    def close(self) -> None: ...


def mean(model: Any, batch: Any) -> dict[str, Any]:
    return {"mean": model(batch[0]).sum()}


def identity() -> nn.Module:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    return model


def test_one_process_with_an_unnamed_loader() -> None:
    sinks = [RecordingSink(fails=True), RecordingSink()]
    evaluation = holdfast.evaluate.Evaluation(
        identity(), DataLoader(DATA, 4), mean, budget="1m", sinks=sinks
    )
    assert evaluation.group is None
    result = evaluation.run(3)
    assert result.metrics == {"mean": 4.5}
    assert evaluation.run(3).metrics == {"mean": 4.5}  # the same step again
    assert all(sink.is_written.wait(10) for sink in sinks)
    step, numbers = sinks[1].records[0]
    assert step == 3
    assert numbers.pop("eval/seconds") == pytest.approx(result.seconds)
    assert numbers == {
        "eval/mean": 4.5,
        "eval/failed": 0.0,
        "eval/degraded": 0.0,
        "eval/attempts": 1.0,
        "eval/coverage": 1.0,
    }


def test_failed_evaluation_is_reported_without_metrics() -> None:
    sink = RecordingSink()

    def fails(_model: Any, _batch: Any) -> dict[str, Any]:
        raise RuntimeError("CUDA error: device-side assert triggered")

    result = Evaluation(None, [torch.ones(2)], fails, budget="1h", retries=1, sinks=[sink]).run(1)
    assert (result.metrics, result.failed, result.attempts, result.coverage) == ({}, True, 2, 0.0)
    assert "device-side assert" in result.errors[0]
    assert sink.is_written.wait(10)
    numbers = sink.records[0][1]
    assert numbers.keys() == {
        "eval/failed",
        "eval/degraded",
        "eval/attempts",
        "eval/seconds",
        "eval/coverage",
    }
    assert numbers["eval/failed"] == 1.0


@pytest.mark.parametrize("value", [(1, 2, 3), torch.ones(3), "much"])
def test_invalid_metric_values_fail(value: Any) -> None:
    result = Evaluation(
        None, [torch.ones(2)], lambda *_: {"loss": value}, budget="1h", retries=0
    ).run(1)
    assert result.failed
    assert result.errors


def test_nan_is_reported_and_is_not_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    result = Evaluation(
        None, [torch.ones(2)], lambda *_: {"loss": (nan, 2), "ok": 2}, budget=5
    ).run(1)
    assert not result.failed
    assert result.not_finite == ("loss",)
    assert result.metrics["ok"] == 1.0
    assert "not finite: loss" in caplog.text


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"budget": 0}, "must be positive"),
        ({"budget": "soon"}, "is not a duration"),
        ({"retries": -1}, "at least 0"),
        ({"min_coverage": 2}, "between 0 and 1"),
        ({"only_rank": 0, "collective_forward": True}, "excludes collective_forward"),
        ({"loaders": {}}, "loaders is empty"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], why: str) -> None:
    arguments = {"loaders": [torch.ones(2)], "budget": "1h", **options}
    with pytest.raises(InvalidValue, match=why):
        Evaluation(None, arguments.pop("loaders"), mean, **arguments)


def test_async_result_has_the_step_of_the_copy() -> None:
    model, may_continue, started, sink = (
        identity(),
        threading.Event(),
        threading.Event(),
        RecordingSink(),
    )

    def slow(copy: Any, batch: Any) -> dict[str, Any]:
        started.set()
        assert may_continue.wait(30)
        return mean(copy, batch)

    evaluation = AsyncEvaluation(model, DataLoader(DATA, 4), slow, budget=60, sinks=[sink])
    rng_state = torch.get_rng_state()
    assert evaluation.start(5)
    assert started.wait(30)
    with torch.no_grad():
        model.weight.fill_(100.0)  # training continues
    assert model.training
    assert torch.is_grad_enabled()
    assert evaluation.poll() is None
    assert not evaluation.start(6)
    assert evaluation.skipped == [6]
    may_continue.set()
    result = evaluation.wait()
    assert result is not None
    assert (result.step, result.metrics) == (5, {"mean": 4.5})
    assert evaluation.poll() is None
    assert evaluation.wait() is None
    assert evaluation.run(7).metrics == {"mean": 450.0}
    assert torch.equal(torch.get_rng_state(), rng_state)
    assert sink.is_written.wait(10)
    assert sink.records[0][0] == 5
    with pytest.raises(InvalidValue, match="interfere with training's collectives"):
        AsyncEvaluation(model, [torch.ones(2)], mean, budget="1h", collective_forward=True)
