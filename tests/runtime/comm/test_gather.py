"""Gathered, scattered and broadcast on real ranks: what torch gives, to the bit, within the limit."""

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

from holdfast.errors import BadValue, CollectiveFailed, CollectiveTimeout
from holdfast.runtime.comm.broadcast import broadcast
from holdfast.runtime.comm.gather import all_gather, reduce_scatter
from tests.runtime.comm.ranks import run

LIMIT_S = 20
ANY = ["float32", "float16", "bfloat16", "int16", "int64", "uint8", "bool", "complex64"]
SUMMED = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64"]
OPS = ["SUM", "MIN", "MAX", "PRODUCT"]
SIZES = st.one_of(st.sampled_from([0, 1]), st.integers(2, 999), st.integers(60_000, 300_000))


def numbers(size: int, dtype: str, seed: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed * 16 + rank)
    return torch.randint(0, 5, (size,), generator=generator).to(getattr(torch, dtype))


def gathers(rank: int, cases: list[tuple[int, str, int]]) -> list[Any]:
    wrong = []
    ranks = dist.get_world_size()
    for seed, (size, dtype, src) in enumerate(cases):
        own = numbers(size, dtype, seed, rank)
        all_of_them = [numbers(size, dtype, seed, other) for other in range(ranks)]
        one = torch.zeros(ranks * size, dtype=own.dtype)
        listed = [torch.zeros_like(own) for _ in range(ranks)]
        in_place = torch.cat([own if other == rank else torch.zeros_like(own) for other in range(ranks)])
        strided = torch.stack([own, own], dim=-1)[:, 0]
        assert all_gather(one, strided, timeout=LIMIT_S) is one
        all_gather(listed, own, timeout=LIMIT_S)
        all_gather(in_place, in_place[rank * size : (rank + 1) * size], timeout=LIMIT_S)
        given_out = torch.stack([own, own], dim=-1)[:, 0]
        source = src % ranks
        broadcast(given_out, source, timeout=LIMIT_S, chunk=[None, "auto", 7_001][seed % 3], window=2)
        expected = torch.cat(all_of_them)
        if not (torch.equal(one, expected) and torch.equal(torch.cat(listed), expected)):
            wrong.append((size, dtype, "gathered"))
        if not torch.equal(in_place, expected):
            wrong.append((size, dtype, "in place"))
        if not torch.equal(given_out, all_of_them[source]):
            wrong.append((size, dtype, "broadcast"))
    return wrong


@given(st.lists(st.tuples(SIZES, st.sampled_from(ANY), st.integers(0, 3)), min_size=25, max_size=25))
@settings(max_examples=1, deadline=None, phases=[Phase.generate])
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.matrix), 4])
def test_all_have_what_each_gave(ranks: int, tmp_path_factory: pytest.TempPathFactory, cases: list[Any]) -> None:
    cases = [*cases, (0, "float32", 0), (1, "bool", 1), (5_000_000, "float32", 1)]
    assert run(ranks, gathers, tmp_path_factory.mktemp("gathers"), cases) == [[]] * ranks


def scatters(rank: int, cases: list[tuple[int, str, str]]) -> list[Any]:
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
        reduce_scatter(listed, list(whole.view(ranks, -1).unbind()) if size else [out] * ranks, operation)
        kept = torch.equal(whole, before)
        in_place = whole[rank * size : (rank + 1) * size]
        reduce_scatter(in_place, whole, operation, timeout=LIMIT_S)
        if not (kept and all(torch.equal(each, expected) for each in (out, listed, in_place))):
            wrong.append((size, dtype, op, kept))
    return wrong


@given(st.lists(st.tuples(SIZES, st.sampled_from(SUMMED), st.sampled_from(OPS)), min_size=25, max_size=25))
@settings(max_examples=1, deadline=None, phases=[Phase.generate])
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.matrix), 3])
def test_each_has_its_part_of_the_sum(ranks: int, tmp_path_factory: pytest.TempPathFactory, cases: list[Any]) -> None:
    cases = [*cases, (1_500_001, "float32", "SUM"), (3, "uint8", "SUM")]
    assert run(ranks, scatters, tmp_path_factory.mktemp("scatters"), cases) == [[]] * ranks


MISTAKES = {
    "elements": lambda tensor, group: all_gather(torch.ones(9), tensor, group),
    "listed": lambda tensor, group: all_gather([tensor], tensor, group),
    "dtype": lambda tensor, group: all_gather(torch.ones(8, dtype=torch.float64), tensor, group),
    "strided": lambda tensor, group: all_gather(torch.ones(16)[::2], tensor, group),
    "gradient": lambda tensor, group: all_gather(torch.ones(8, requires_grad=True), tensor, group),
    "member": lambda tensor, group: broadcast(tensor, 7, group),
    "piece": lambda tensor, group: broadcast(tensor, 0, group, chunk=0),
    "time": lambda tensor, group: broadcast(tensor, 0, group, timeout=0),
    "output": lambda tensor, group: reduce_scatter(torch.ones(8)[::2], tensor.repeat(2), group=group),
}


def mistakes(_: int) -> list[Any]:
    told = []
    for name, make in MISTAKES.items():
        try:
            make(torch.ones(4), dist.new_group([0, 1]))  # a refused call leaves its group broken
        except BadValue as error:
            told.append(str(error))
        else:
            told.append(f"{name} was taken")
    return told


def test_what_does_not_fit_is_refused_in_one_sentence_on_every_rank(tmp_path: Path) -> None:
    first, second = run(2, mistakes, tmp_path)
    assert first == second
    assert [told for told in first if "was taken" in told] == []
    assert "a tensor of 9 elements was given where 2 ranks need 8" in first[0]


CALLS = {
    "gather": lambda part, whole, group: all_gather(whole, part, group, timeout=1.5),
    "scatter": lambda part, whole, group: reduce_scatter(part, whole, group=group, timeout=1.5),
    "broadcast": lambda _, whole, group: broadcast(whole, 1, group, chunk=100_000, timeout=1.5),
}


def one_does_not_come(rank: int) -> Any:
    told = []
    groups = {name: dist.new_group([0, 1, 2]) for name in CALLS}
    for name, make in CALLS.items():
        begun = time.monotonic()
        if rank != 1:
            with pytest.raises(CollectiveTimeout) as caught:
                make(torch.ones(400_000), torch.ones(1_200_000), groups[name])
            told.append((caught.value.missing, 1.4 < time.monotonic() - begun < 4))
    return told


def test_who_does_not_come_is_named_in_time(tmp_path: Path) -> None:
    told = run(3, one_does_not_come, tmp_path)
    assert told[0] == told[2] == [((1,), True)] * 3


def gather_again_and_again(whole: torch.Tensor) -> None:
    for _ in range(50):
        all_gather(whole, torch.ones(300_000), timeout=LIMIT_S)
        time.sleep(0.05)


def one_is_late_and_then_dies(rank: int) -> Any:
    whole = torch.zeros(600_000)
    all_gather(whole, torch.zeros(300_000), timeout=LIMIT_S)
    time.sleep(1.5 if rank == 1 else 0)
    all_gather(whole, torch.full((300_000,), rank + 1.0), timeout=LIMIT_S)  # waited for twice, with no harm
    got = whole[0].item(), whole[-1].item()
    if rank == 1:
        os._exit(0)
    begun = time.monotonic()
    with pytest.raises(CollectiveFailed):
        gather_again_and_again(whole)
    return got, time.monotonic() - begun < LIMIT_S - 2


def test_one_that_is_late_is_waited_for_and_one_that_is_gone_is_not(tmp_path: Path) -> None:
    assert run(2, one_is_late_and_then_dies, tmp_path)[0] == ((1.0, 2.0), True)


def among_two_of_three(rank: int) -> Any:
    group = dist.new_group([1, 2])
    if rank == 0:
        return None
    given, gathered, part = torch.full((3,), float(rank)), torch.zeros(6), torch.zeros(3)
    all_gather(gathered, given, group, timeout=LIMIT_S)
    reduce_scatter(part, gathered * rank, group=group, timeout=LIMIT_S)
    return gathered.tolist(), part.tolist(), broadcast(given, 2, group, timeout=LIMIT_S).tolist()


def test_ranks_of_a_group_are_meant_by_their_global_numbers(tmp_path: Path) -> None:
    gathered = [1.0] * 3 + [2.0] * 3
    first, second, third = run(3, among_two_of_three, tmp_path)
    assert (first, second, third) == (
        None, (gathered, [3.0] * 3, [2.0] * 3), (gathered, [6.0] * 3, [2.0] * 3),
    )  # fmt: skip
