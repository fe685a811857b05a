"""One rank that evaluates for all, evaluation on the side, and models whose forward communicates, on real ranks."""

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

from holdfast.runtime.evaluate import AsyncEvaluation, Evaluation, in_step
from tests.runtime.comm.ranks import run
from tests.runtime.evaluate.training import dataset, guarded, loaders, network, right, squares, summary, train, truth

RANKS = 3


def all_of_it() -> dict[str, Any]:
    return {name: DataLoader(dataset(name), 4) for name in ("long", "short")}


class Fails:
    """As the metric function; ``what`` happens on the rank that evaluates, in its first batch."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __call__(self, model: Any, batch: Any) -> Any:
        what, self.what = self.what, self.what if self.what == "always" else ""
        if what in ("once", "always"):
            raise ValueError("a strange sample")
        if what == "hangs":
            time.sleep(3)
        return squares(model, batch)


def one_rank(_rank: int) -> Any:
    without, _ = train(None)
    told = []
    for speaker, what in ((0, ""), (2, "once"), (0, "always"), (1, "hangs")):
        losses, results = train(
            lambda model: Evaluation(
                model, all_of_it(), Fails(what), budget=1 if what == "hangs" else 60, grace=0.5, only_rank=speaker,  # noqa: B023
            )
        )  # fmt: skip
        told.append((losses == without, summary(results)))
    return told


@pytest.mark.slow
def test_one_rank_evaluates_and_nobody_waits_for_it_longer_than_it_may_take(tmp_path: Path) -> None:
    told = run(RANKS, one_rank, tmp_path, limit_s=90)
    assert [rank == told[0] for rank in told] == [True] * RANKS
    assert all(same for same, _ in told[0])
    well, again, always, hangs = (results for _, results in told[0])
    assert [each[6] for each in well + again + hangs[1:]] == [True] * 5
    assert [each[2] for each in again] == [2, 1]
    assert [(each[0], each[4]) for each in [*always, hangs[0]]] == [({}, True)] * 3
    assert hangs[0][5] == {1: "did not come"}


def aside(rank: int) -> Any:
    model = network(1)
    evaluation = AsyncEvaluation(model, loaders(), squares, budget=60)
    expected, told = {}, []
    for step in range(6):
        expected[step] = truth(model)
        evaluation.start(step)
        if rank == step % RANKS:
            time.sleep(0.05)  # ranks see the end of an evaluation at different times
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1)
        dist.all_reduce(torch.ones(3))  # training's collectives go on meanwhile
    while (result := evaluation.wait()) is not None:
        told.append((result.step, right(result, expected[result.step])))
    return told, evaluation.skipped, threading.active_count() < 9


@pytest.mark.slow
def test_on_the_side_all_ranks_begin_the_same_evaluations(tmp_path: Path) -> None:
    told = run(RANKS, aside, tmp_path)
    assert [rank == told[0] for rank in told] == [True] * RANKS
    results, skipped, _ = told[0]
    assert all(ok for _, ok in results)
    assert sorted([step for step, _ in results] + skipped) == list(range(6))
    assert results[0][0] == 0


class Together(nn.Module):
    """Communicates in its forward, as sharded models do: ranks that do not come leave the others waiting in it."""

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


class Strange(torch.utils.data.Dataset[Any]):
    """Its last sample cannot be read the first time."""

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
    """A real FSDP2 model, each layer gathered in its own forward, and the same weights whole."""
    model = network(1)
    for layer in model.children():
        if any(True for _ in layer.parameters()):
            fully_shard(layer)
    return fully_shard(model), network(1)


def stand_in() -> tuple[nn.Module, nn.Module]:
    model = Together(network(1))
    return model, model.model


MODELS = {"a stand-in": stand_in, "FSDP2": sharded}


def in_forward(rank: int, names: list[str], kind: str) -> Any:
    in_step.LOOK_EVERY = 2
    told = []
    for name in names:
        model, whole_model = MODELS[kind]()
        data = loaders(2)
        if name.startswith("loader") and rank == 1:
            whole = data["short" if name == "loader at once" else "long"]
            strange = DataLoader(Strange(whole.dataset, 1), 2, sampler=whole.sampler)
            data = {**data, "short" if name == "loader at once" else "long": strange}

        def metrics(model: Any, batch: Any, name: str = name, left: list[int] = [3] if rank == 2 else []) -> Any:
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
        told.append((name, right(result, truth(whole_model)), result.attempts, sorted(result.troubles)))
    return told


BESIDE = ["nothing", "loader", "loader at once", "before", "after"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_ranks_do_the_same_number_of_forwards_whatever_fails_beside_them(tmp_path: Path, kind: str) -> None:
    names = BESIDE if kind == "FSDP2" else [*BESIDE, "inside, on all"]
    told = run(RANKS, in_forward, tmp_path, names, kind)
    assert [rank == told[0] for rank in told] == [True] * RANKS
    assert [(name, ok, attempts) for name, ok, attempts, _ in told[0]] == [
        (name, True, 1 if name == "nothing" else 2) for name in names
    ]


def inside_alone(rank: int) -> Any:
    model = Together(network(1))
    model.fails_at = 2 if rank == 1 else 0
    return guarded(model, budget=20, grace=1, collective_forward=True).run(1)


@pytest.mark.slow
def test_what_fails_inside_of_a_forward_on_one_rank_alone_is_raised(tmp_path: Path) -> None:
    told = run(RANKS, inside_alone, tmp_path)
    assert isinstance(told[1], torch.OutOfMemoryError)
    assert all(isinstance(each, Exception | None) for each in told)
