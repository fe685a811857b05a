"""all_gather, reduce_scatter and broadcast on real ranks: torch's results, within the timeout."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from holdfast.core.errors import CollectiveFailed, CollectiveTimeout, InvalidValue
from holdfast.training.collectives.broadcast import broadcast
from holdfast.training.collectives.gather import all_gather, reduce_scatter
from tests.unit.training.collectives.ranks import run

LIMIT_S = 20
ANY = ["float32", "float16", "bfloat16", "int16", "int64", "uint8", "bool", "complex64"]
SUMMED = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64"]
OPS = ["SUM", "MIN", "MAX", "PRODUCT"]
SIZES = st.one_of(st.sampled_from([0, 1]), st.integers(2, 999), st.integers(60_000, 300_000))


def numbers(size: int, dtype: str, seed: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed * 16 + rank)
    return torch.randint(0, 5, (size,), generator=generator).to(getattr(torch, dtype))


def gather_cases(rank: int, cases: list[tuple[int, str, int]]) -> list[Any]:
    wrong = []
    ranks = dist.get_world_size()
    for seed, (size, dtype, src) in enumerate(cases):
        own = numbers(size, dtype, seed, rank)
        all_of_them = [numbers(size, dtype, seed, other) for other in range(ranks)]
        one = torch.zeros(ranks * size, dtype=own.dtype)
        listed = [torch.zeros_like(own) for _ in range(ranks)]
        in_place = torch.cat(
            [own if other == rank else torch.zeros_like(own) for other in range(ranks)]
        )
        strided = torch.stack([own, own], dim=-1)[:, 0]
        assert all_gather(one, strided, timeout=LIMIT_S) is one
        all_gather(listed, own, timeout=LIMIT_S)
        all_gather(in_place, in_place[rank * size : (rank + 1) * size], timeout=LIMIT_S)
        given_out = torch.stack([own, own], dim=-1)[:, 0]
        source = src % ranks
        broadcast(
            given_out, source, timeout=LIMIT_S, chunk=[None, "auto", 7_001][seed % 3], window=2
        )
        expected = torch.cat(all_of_them)
        if not (torch.equal(one, expected) and torch.equal(torch.cat(listed), expected)):
            wrong.append((size, dtype, "gathered"))
        if not torch.equal(in_place, expected):
            wrong.append((size, dtype, "in place"))
        if not torch.equal(given_out, all_of_them[source]):
            wrong.append((size, dtype, "broadcast"))
    return wrong


@given(
    st.lists(st.tuples(SIZES, st.sampled_from(ANY), st.integers(0, 3)), min_size=25, max_size=25)
)
@settings(max_examples=1, deadline=None, phases=[Phase.generate])
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.matrix), 4])
def test_gather_and_broadcast_give_every_rank_all_parts(
    ranks: int, tmp_path_factory: pytest.TempPathFactory, cases: list[Any]
) -> None:
    cases = [*cases, (0, "float32", 0), (1, "bool", 1), (5_000_000, "float32", 1)]
    assert run(ranks, gather_cases, tmp_path_factory.mktemp("gather"), cases) == [[]] * ranks


def scatter_cases(rank: int, cases: list[tuple[int, str, str]]) -> list[Any]:
    wrong = []
    ranks = dist.get_world_size()
    for seed, (size, dtype, op) in enumerate(cases):
        whole, operation = numbers(ranks * size, dtype, seed, rank), getattr(dist.ReduceOp, op)
        expected = whole.clone()
        if size:
            dist.all_reduce(expected, operation)
        expected = expected[rank * size : (rank + 1) * size]
        out, before = torch.zeros(size, dtype=whole.dtype), whole.clone()
        assert reduce_scatter(out, whole, operation, timeout=LIMIT_S) is out
        listed = torch.zeros_like(out)
        reduce_scatter(
            listed, list(whole.view(ranks, -1).unbind()) if size else [out] * ranks, operation
        )
        kept = torch.equal(whole, before)
        in_place = whole[rank * size : (rank + 1) * size]
        reduce_scatter(in_place, whole, operation, timeout=LIMIT_S)
        if not (kept and all(torch.equal(each, expected) for each in (out, listed, in_place))):
            wrong.append((size, dtype, op, kept))
    return wrong


@given(
    st.lists(
        st.tuples(SIZES, st.sampled_from(SUMMED), st.sampled_from(OPS)), min_size=25, max_size=25
    )
)
@settings(max_examples=1, deadline=None, phases=[Phase.generate])
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.matrix), 3])
def test_reduce_scatter_gives_each_rank_its_part(
    ranks: int, tmp_path_factory: pytest.TempPathFactory, cases: list[Any]
) -> None:
    cases = [*cases, (1_500_001, "float32", "SUM"), (3, "uint8", "SUM")]
    assert run(ranks, scatter_cases, tmp_path_factory.mktemp("scatter"), cases) == [[]] * ranks


REFUSED = {
    "elements": lambda tensor, group: all_gather(torch.ones(9), tensor, group),
    "listed": lambda tensor, group: all_gather([tensor], tensor, group),
    "dtype": lambda tensor, group: all_gather(torch.ones(8, dtype=torch.float64), tensor, group),
    "strided": lambda tensor, group: all_gather(torch.ones(16)[::2], tensor, group),
    "gradient": lambda tensor, group: all_gather(torch.ones(8, requires_grad=True), tensor, group),
    "member": lambda tensor, group: broadcast(tensor, 7, group),
    "chunk": lambda tensor, group: broadcast(tensor, 0, group, chunk=0),
    "time": lambda tensor, group: broadcast(tensor, 0, group, timeout=0),
    "output": lambda tensor, group: reduce_scatter(
        torch.ones(8)[::2], tensor.repeat(2), group=group
    ),
}


def rejected_calls(_: int) -> list[Any]:
    results = []
    for name, make in REFUSED.items():
        try:
            make(torch.ones(4), dist.new_group([0, 1]))  # a rejected call leaves its group broken
        except InvalidValue as error:
            results.append(str(error))
        else:
            results.append(f"{name} was accepted")
    return results


def test_invalid_arguments_are_rejected_alike_on_every_rank(tmp_path: Path) -> None:
    first, second = run(2, rejected_calls, tmp_path)
    assert first == second
    assert [text for text in first if "was accepted" in text] == []
    assert "a tensor has 9 elements, but 2 ranks need 8" in first[0]


CALLS = {
    "gather": lambda part, whole, group: all_gather(whole, part, group, timeout=1.5),
    "scatter": lambda part, whole, group: reduce_scatter(part, whole, group=group, timeout=1.5),
    "broadcast": lambda _, whole, group: broadcast(whole, 1, group, chunk=100_000, timeout=1.5),
}


def rank_1_is_missing(rank: int) -> Any:
    results = []
    groups = {name: dist.new_group([0, 1, 2]) for name in CALLS}
    for name, make in CALLS.items():
        began = time.monotonic()
        if rank != 1:
            with pytest.raises(CollectiveTimeout) as caught:
                make(torch.ones(400_000), torch.ones(1_200_000), groups[name])
            results.append((caught.value.missing, 1.4 < time.monotonic() - began < 4))
    return results


def test_missing_rank_is_reported_in_time(tmp_path: Path) -> None:
    results = run(3, rank_1_is_missing, tmp_path)
    assert results[0] == results[2] == [((1,), True)] * 3


def gather_repeatedly(whole: torch.Tensor) -> None:
    for _ in range(50):
        all_gather(whole, torch.ones(300_000), timeout=LIMIT_S)
        time.sleep(0.05)


def rank_1_is_late_then_exits(rank: int) -> Any:
    whole = torch.zeros(600_000)
    all_gather(whole, torch.zeros(300_000), timeout=LIMIT_S)
    time.sleep(1.5 if rank == 1 else 0)
    # A second wait is harmless.
    all_gather(whole, torch.full((300_000,), rank + 1.0), timeout=LIMIT_S)
    got = whole[0].item(), whole[-1].item()
    if rank == 1:
        os._exit(0)
    began = time.monotonic()
    with pytest.raises(CollectiveFailed):
        gather_repeatedly(whole)
    return got, time.monotonic() - began < LIMIT_S - 2


def test_call_waits_for_late_rank_but_not_for_exited_rank(tmp_path: Path) -> None:
    assert run(2, rank_1_is_late_then_exits, tmp_path)[0] == ((1.0, 2.0), True)


def call_in_subgroup(rank: int) -> Any:
    group = dist.new_group([1, 2])
    if rank == 0:
        return None
    own, gathered, part = torch.full((3,), float(rank)), torch.zeros(6), torch.zeros(3)
    all_gather(gathered, own, group, timeout=LIMIT_S)
    reduce_scatter(part, gathered * rank, group=group, timeout=LIMIT_S)
    return gathered.tolist(), part.tolist(), broadcast(own, 2, group, timeout=LIMIT_S).tolist()


def test_src_is_a_global_rank(tmp_path: Path) -> None:
    gathered = [1.0] * 3 + [2.0] * 3
    first, second, third = run(3, call_in_subgroup, tmp_path)
    assert (first, second, third) == (
        None,
        (gathered, [3.0] * 3, [2.0] * 3),
        (gathered, [6.0] * 3, [2.0] * 3),
    )
