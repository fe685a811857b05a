"""only_rank, AsyncEvaluation, and models whose forward communicates, on real ranks."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

from holdfast.training.evaluate import AsyncEvaluation, Evaluation, lockstep_forwards
from holdfast.training.evaluate.result import NO_REPORT
from tests.unit.training.collectives.ranks import run
from tests.unit.training.evaluate.training_run import (
    dataset,
    expected_metrics,
    guarded,
    is_correct,
    loaders,
    network,
    squares,
    summary,
    train,
)

RANKS = 3


def whole_loaders() -> dict[str, Any]:
    return {name: DataLoader(dataset(name), 4) for name in ("long", "short")}


class FailingMetrics:
    """A metric function that fails with ``what`` in the first batch."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __call__(self, model: Any, batch: Any) -> Any:
        what, self.what = self.what, self.what if self.what == "always" else ""
        if what in ("once", "always"):
            raise ValueError("an invalid sample")
        if what == "hangs":
            time.sleep(3)
        return squares(model, batch)


def evaluate_on_one_rank(_rank: int) -> Any:
    without, _ = train(None)
    results_of_ranks = []
    for only_rank, what in ((0, ""), (2, "once"), (0, "always"), (1, "hangs")):
        losses, results = train(
            lambda model: Evaluation(
                model,
                whole_loaders(),
                FailingMetrics(what),  # noqa: B023
                budget=1 if what == "hangs" else 60,  # noqa: B023
                grace=0.5,
                only_rank=only_rank,  # noqa: B023
            )
        )
        results_of_ranks.append((losses == without, summary(results)))
    return results_of_ranks


@pytest.mark.slow
def test_other_ranks_wait_for_the_only_rank_no_longer_than_its_budget(tmp_path: Path) -> None:
    results_of_ranks = run(RANKS, evaluate_on_one_rank, tmp_path, limit_s=90)
    assert [rank == results_of_ranks[0] for rank in results_of_ranks] == [True] * RANKS
    assert all(same for same, _ in results_of_ranks[0])
    succeeds, retries, always, hangs = (results for _, results in results_of_ranks[0])
    assert [each[6] for each in succeeds + retries + hangs[1:]] == [True] * 5
    assert [each[2] for each in retries] == [2, 1]
    assert [(each[0], each[4]) for each in [*always, hangs[0]]] == [({}, True)] * 3
    assert hangs[0][5] == {1: NO_REPORT}


def evaluate_concurrently(rank: int) -> Any:
    model = network(1)
    evaluation = AsyncEvaluation(model, loaders(), squares, budget=60)
    expected, results_of_ranks = {}, []
    for step in range(6):
        expected[step] = expected_metrics(model)
        evaluation.start(step)
        if rank == step % RANKS:
            time.sleep(0.05)  # ranks see the end of an evaluation at different times
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1)
        dist.all_reduce(torch.ones(3))  # training's collectives continue meanwhile
    while (result := evaluation.wait()) is not None:
        results_of_ranks.append((result.step, is_correct(result, expected[result.step])))
    return results_of_ranks, evaluation.skipped, threading.active_count() < 9


@pytest.mark.slow
def test_async_evaluations_start_on_all_ranks_or_none(tmp_path: Path) -> None:
    results_of_ranks = run(RANKS, evaluate_concurrently, tmp_path)
    assert [rank == results_of_ranks[0] for rank in results_of_ranks] == [True] * RANKS
    results, skipped, _ = results_of_ranks[0]
    assert all(ok for _, ok in results)
    assert sorted([step for step, _ in results] + skipped) == list(range(6))
    assert results[0][0] == 0


def evaluate_at_the_end_of_a_script(_rank: int) -> Any:
    go_on = threading.Event()

    def wait(model: Any, batch: Any) -> Any:
        go_on.wait()
        return squares(model, batch)

    evaluation = AsyncEvaluation(network(1), loaders(), wait, budget=60)
    evaluation.start(7)
    threading.Timer(0.05, go_on.set).start()
    was_running = evaluation._thread.is_alive()
    threading._shutdown()  # what the interpreter calls first
    return was_running, evaluation._thread.is_alive()


def test_the_end_of_a_script_waits_for_the_last_evaluation(tmp_path: Path) -> None:
    assert run(1, evaluate_at_the_end_of_a_script, tmp_path) == [(True, False)]


class CommunicatingModel(nn.Module):
    """Communicates in its forward, as sharded models do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.fails_at = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.fails_at -= 1
        if self.fails_at == 0:
            raise torch.OutOfMemoryError("in the middle of a forward")
        ranks = torch.ones(1)
        dist.all_reduce(ranks)
        assert ranks.item() == RANKS
        return self.model(x)


class FailingDataset(torch.utils.data.Dataset[Any]):
    """Reads of its last samples fail the first ``times`` times."""

    def __init__(self, whole: Any, times: int) -> None:
        self.whole, self.times = whole, times

    def __len__(self) -> int:
        return len(self.whole)

    def __getitem__(self, index: int) -> Any:
        if index > len(self) - 4 and self.times > 0:
            self.times -= 1
            raise OSError("stale file handle")
        return self.whole[index]


def sharded() -> tuple[nn.Module, nn.Module]:
    """Return an FSDP2 model, each layer gathered in its own forward, and its full weights."""
    model = network(1)
    for layer in model.children():
        if any(True for _ in layer.parameters()):
            fully_shard(layer)
    return fully_shard(model), network(1)


def communicating() -> tuple[nn.Module, nn.Module]:
    model = CommunicatingModel(network(1))
    return model, model.model


MODELS = {"communicating": communicating, "FSDP2": sharded}


def run_cases(rank: int, names: list[str], kind: str) -> Any:
    lockstep_forwards.CHECK_EVERY = 2
    results_of_ranks = []
    for name in names:
        model, whole_model = MODELS[kind]()
        data = loaders(2)
        if name.startswith("loader") and rank == 1:
            whole = data["short" if name == "loader at once" else "long"]
            failing = DataLoader(FailingDataset(whole.dataset, 1), 2, sampler=whole.sampler)
            data = {**data, "short" if name == "loader at once" else "long": failing}

        def metrics(
            model: Any, batch: Any, name: str = name, left: list[int] = [3] if rank == 2 else []
        ) -> Any:
            if name == "before" and left and left.pop():
                raise ValueError("before the forward")
            found = squares(model, batch)
            if name == "after" and left and left.pop():
                raise ValueError("after the forward")
            return found

        if name == "inside, on all":
            model.fails_at = 3
        evaluation = Evaluation(model, data, metrics, budget=60, grace=10, collective_forward=True)
        result = evaluation.run(1)
        results_of_ranks.append(
            (
                name,
                is_correct(result, expected_metrics(whole_model)),
                result.attempts,
                sorted(result.errors),
            )
        )
    return results_of_ranks


OUTSIDE = ["nothing", "loader", "loader at once", "before", "after"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_all_ranks_run_equally_many_forwards_after_failures_outside_them(
    tmp_path: Path, kind: str
) -> None:
    names = OUTSIDE if kind == "FSDP2" else [*OUTSIDE, "inside, on all"]
    results_of_ranks = run(RANKS, run_cases, tmp_path, names, kind)
    assert [rank == results_of_ranks[0] for rank in results_of_ranks] == [True] * RANKS
    assert [(name, ok, attempts) for name, ok, attempts, _ in results_of_ranks[0]] == [
        (name, True, 1 if name == "nothing" else 2) for name in names
    ]


def fail_inside_on_one_rank(rank: int) -> Any:
    model = CommunicatingModel(network(1))
    model.fails_at = 2 if rank == 1 else 0
    return guarded(model, budget=20, grace=1, collective_forward=True).run(1)


@pytest.mark.slow
def test_error_inside_a_forward_on_one_rank_is_raised(tmp_path: Path) -> None:
    results_of_ranks = run(RANKS, fail_inside_on_one_rank, tmp_path)
    assert isinstance(results_of_ranks[1], torch.OutOfMemoryError)
    assert all(isinstance(each, Exception | None) for each in results_of_ranks)
