"""One process: results, sinks, what is refused, what is left as it was, and evaluation on the side."""

from __future__ import annotations

import threading
from math import nan
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast
from holdfast.errors import BadValue
from holdfast.runtime.evaluate import AsyncEvaluation, Evaluation

DATA = TensorDataset(torch.arange(10.0)[:, None])


class Keeps:
    """A sink that keeps what it gets, and then fails if it should."""

    def __init__(self, *, fails: bool = False) -> None:
        self.got: list[tuple[int, dict[str, float]]] = []
        self.came, self.fails = threading.Event(), fails

    def write(self, step: int, metrics: Any) -> None:
        self.got.append((step, dict(metrics)))
        self.came.set()
        if self.fails:
            raise OSError("no space left on device")

    def close(self) -> None: ...


def mean(model: Any, batch: Any) -> dict[str, Any]:
    return {"mean": model(batch[0]).sum()}


def identity() -> nn.Module:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    return model


def test_one_process_and_one_loader_without_a_name() -> None:
    sinks = [Keeps(fails=True), Keeps()]
    evaluation = holdfast.evaluate.Evaluation(identity(), DataLoader(DATA, 4), mean, budget="1m", sinks=sinks)
    assert evaluation.group is None
    result = evaluation.run(3)
    assert result.metrics == {"mean": 4.5}
    assert evaluation.run(3).metrics == {"mean": 4.5}  # the same step once more
    assert all(sink.came.wait(10) for sink in sinks)
    step, numbers = sinks[1].got[0]
    assert step == 3
    assert numbers.pop("eval/seconds") == pytest.approx(result.seconds)
    assert numbers == {
        "eval/mean": 4.5, "eval/failed": 0.0, "eval/degraded": 0.0, "eval/attempts": 1.0, "eval/coverage": 1.0,
    }  # fmt: skip


def test_what_failed_is_reported_so_and_bears_no_number() -> None:
    sink = Keeps()

    def fails(_model: Any, _batch: Any) -> dict[str, Any]:
        raise RuntimeError("CUDA error: device-side assert triggered")

    result = Evaluation(None, [torch.ones(2)], fails, budget=5, retries=1, sinks=[sink]).run(1)
    assert (result.metrics, result.failed, result.attempts, result.coverage) == ({}, True, 2, 0.0)
    assert "device-side assert" in result.troubles[0]
    assert sink.came.wait(10)
    numbers = sink.got[0][1]
    assert numbers.keys() == {"eval/failed", "eval/degraded", "eval/attempts", "eval/seconds", "eval/coverage"}
    assert numbers["eval/failed"] == 1.0


@pytest.mark.parametrize("given", [(1, 2, 3), torch.ones(3), "much"])
def test_metrics_that_are_none(given: Any) -> None:
    result = Evaluation(None, [torch.ones(2)], lambda *_: {"loss": given}, budget=5, retries=0).run(1)
    assert result.failed
    assert result.troubles


def test_nan_is_no_failure_and_is_not_hidden(caplog: pytest.LogCaptureFixture) -> None:
    result = Evaluation(None, [torch.ones(2)], lambda *_: {"loss": (nan, 2), "ok": 2}, budget=5).run(1)
    assert not result.failed
    assert result.not_finite == ("loss",)
    assert result.metrics["ok"] == 1.0
    assert "not finite: loss" in caplog.text


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"budget": 0}, "positive times"), ({"budget": "soon"}, "is not a time"), ({"retries": -1}, "no sense"),
        ({"min_coverage": 2}, "between 0 and 1"), ({"only_rank": 0, "collective_forward": True}, "exclude each other"),
        ({"loaders": {}}, "no loader"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(options: dict[str, Any], why: str) -> None:
    given = {"loaders": [torch.ones(2)], "budget": 5, **options}
    with pytest.raises(BadValue, match=why):
        Evaluation(None, given.pop("loaders"), mean, **given)


def test_on_the_side_the_result_is_of_the_step_of_the_copy() -> None:
    model, going, begun, sink = identity(), threading.Event(), threading.Event(), Keeps()

    def slow(copy: Any, batch: Any) -> dict[str, Any]:
        begun.set()
        assert going.wait(30)
        return mean(copy, batch)

    evaluation = AsyncEvaluation(model, DataLoader(DATA, 4), slow, budget=60, sinks=[sink])
    chance = torch.get_rng_state()
    assert evaluation.start(5)
    assert begun.wait(30)
    with torch.no_grad():
        model.weight.fill_(100.0)  # training goes on
    assert model.training
    assert torch.is_grad_enabled()
    assert evaluation.poll() is None
    assert not evaluation.start(6)
    assert evaluation.skipped == [6]
    going.set()
    result = evaluation.wait()
    assert result is not None
    assert (result.step, result.metrics) == (5, {"mean": 4.5})
    assert evaluation.poll() is None
    assert evaluation.wait() is None
    assert evaluation.run(7).metrics == {"mean": 450.0}
    assert torch.equal(torch.get_rng_state(), chance)
    assert sink.came.wait(10)
    assert sink.got[0][0] == 5
    with pytest.raises(BadValue, match="meet training's collectives"):
        AsyncEvaluation(model, [torch.ones(2)], mean, budget=5, collective_forward=True)
