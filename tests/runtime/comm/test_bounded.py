"""Bounded collectives on real ranks: they end in time, name who did not come, and give what torch gives."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import comm
from holdfast.errors import BadValue, CollectiveFailed, CollectiveTimeout, GroupBroken
from holdfast.runtime.comm.groups import GroupState
from tests.runtime.comm.ranks import run

LATE_S = 0.3


def one_does_not_come(rank: int) -> Any:
    if rank == 1:
        return None
    begun = time.monotonic()
    with pytest.raises(CollectiveTimeout) as caught:
        comm.all_reduce(torch.ones(3), timeout=1.5)
    took = time.monotonic() - begun
    with pytest.raises(GroupBroken) as again:
        comm.all_reduce(torch.ones(3))
    return str(caught.value), caught.value.missing, took, str(again.value)


def test_who_does_not_come_is_named_with_the_line_and_the_group_is_left(tmp_path: Path) -> None:
    told = run(3, one_does_not_come, tmp_path)
    for rank in (0, 2):
        text, missing, took, again = told[rank]
        assert missing == (1,)
        assert text.startswith("all_reduce of 3 float32 (call 1 in group '0') at test_bounded.py:")
        assert "rank 1 did not come within 1.50 s" in text
        assert 1.5 <= took < 1.5 + LATE_S + 1
        assert again.startswith("process group '0' is not used again: all_reduce of 3 float32 timed out in it")


def one_is_late(rank: int) -> Any:
    time.sleep(2.5 if rank == 1 else 0)
    tensor = torch.full((5,), float(rank + 1))
    comm.all_reduce(tensor, timeout=20)
    comm.all_reduce(tensor, timeout=20)
    return tensor.tolist()


def test_one_that_is_late_costs_nothing_but_time(tmp_path: Path) -> None:
    assert run(2, one_is_late, tmp_path) == [[6.0] * 5] * 2


def one_dies(rank: int) -> Any:
    comm.all_reduce(torch.ones(2))
    if rank == 1:
        os._exit(0)
    for _ in range(50):
        try:
            comm.all_reduce(torch.ones(2), timeout=20)
        except CollectiveFailed as error:
            return str(error)
        time.sleep(0.05)
    return "it went well"


def test_a_peer_that_is_gone_is_said_at_once(tmp_path: Path) -> None:
    assert "failed: " in run(2, one_dies, tmp_path)[0]


CASES = st.tuples(
    st.integers(1, 400),  # elements
    st.integers(1, 150),  # elements of a piece
    st.integers(1, 5),  # pieces at once
    st.sampled_from(["float32", "float64", "int64", "int32", "uint8", "bfloat16"]),
    st.sampled_from(["SUM", "MAX", "MIN", "PRODUCT"]),
    st.booleans(),  # every second element of a larger tensor
)


def pieces(rank: int, cases: list[tuple[int, int, int, str, str, bool]]) -> list[bool]:
    same = []
    for seed, (size, chunk, window, dtype, op, strided) in enumerate(cases):
        generator = torch.Generator().manual_seed(seed * 16 + rank)
        whole = torch.randint(0, 5, (2 * size,), generator=generator).to(getattr(torch, dtype))
        given_to_us = whole.clone()[::2] if strided else whole[:size].clone()
        expected = given_to_us.clone().contiguous()
        operation = getattr(dist.ReduceOp, op)
        dist.all_reduce(expected, operation)
        back = comm.all_reduce(given_to_us, operation, chunk=chunk, window=window, timeout=20)
        same.append(back is given_to_us and torch.equal(given_to_us, expected))
    return same


@given(st.lists(CASES, min_size=30, max_size=30))
@settings(max_examples=3, deadline=None)
def test_pieces_are_the_whole_to_the_bit(tmp_path_factory: pytest.TempPathFactory, cases: list[Any]) -> None:
    assert run(2, pieces, tmp_path_factory.mktemp("pieces"), cases) == [[True] * 30] * 2


def wrong(rank: int, what: str) -> None:
    tensor = torch.ones(4)
    if what == "sparse":
        comm.all_reduce(tensor.to_sparse())
    elif what == "gradient":
        comm.all_reduce(torch.ones(4, requires_grad=True))
    elif what == "time":
        comm.all_reduce(tensor, timeout=-1)
    elif what == "piece":
        comm.all_reduce(tensor, chunk=0)
    elif what == "member":
        comm.all_reduce(tensor, group=dist.new_group([rank ^ 1]))
    elif what == "word":
        comm.agree(value=True, reduce="most")  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["sparse", "gradient", "time", "piece", "word"])
def test_what_cannot_be_reduced_is_refused_on_every_rank(what: str, tmp_path: Path) -> None:
    told = run(2, wrong, tmp_path, what)
    assert [type(each) for each in told] == [BadValue] * 2
    assert str(told[0]) == str(told[1])


def nothing_and_alone(rank: int) -> Any:
    group = dist.new_group([0])
    empty = comm.all_reduce(torch.ones(0))
    if rank:
        with pytest.raises(BadValue, match="no member"):
            comm.all_reduce(torch.ones(1), group=group)
        return empty.numel()
    return empty.numel() + comm.all_reduce(torch.ones(1), group=group).item()


def test_a_tensor_of_nothing_and_a_group_of_one(tmp_path: Path) -> None:
    assert run(2, nothing_and_alone, tmp_path) == [1.0, 0]


def decides(rank: int) -> list[Any]:
    return [
        comm.agree(rank == 2), comm.agree(rank == 2, "all"), comm.agree(rank < 3, "all"),
        comm.agree(rank + 0.5, "max"), comm.agree(rank + 0.5, "min"),
        comm.safe_all_reduce(torch.ones(1)),
    ]  # fmt: skip


def test_all_ranks_decide_alike(tmp_path: Path) -> None:
    assert run(3, decides, tmp_path) == [[True, False, True, 2.5, 0.5, True]] * 3


def meets(rank: int) -> Any:
    for _ in range(3):
        comm.barrier("step", timeout=20)
    if rank == 1:
        return None
    if rank == 0:  # a group that is not used any more is no hindrance
        assert not comm.safe_all_reduce(torch.ones(1), timeout=0.2)
    with pytest.raises(CollectiveTimeout) as caught:
        comm.barrier("end", timeout=3.0)
    return str(caught.value), caught.value.missing


def test_a_barrier_names_who_is_missing_also_without_a_communicator(tmp_path: Path) -> None:
    told = run(3, meets, tmp_path)
    assert told[0] == told[2]
    assert told[0][1] == (1,)
    assert told[0][0].startswith("barrier 'end' did not complete: rank 1 did not come within 3")


def asked_if_over(rank: int, program: str) -> Any:
    """As on NCCL, where a wait that runs out aborts the communicator: works are asked, and never waited for."""
    GroupState.may_wait_again = False  # type: ignore[assignment]
    return {"missing": one_does_not_come, "late": one_is_late, "dies": one_dies}[program](rank)


def test_works_that_may_not_be_waited_for_twice_are_asked(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("missing", "late", "dies")]
    for folder in folders:
        folder.mkdir()
    told = run(3, asked_if_over, folders[0], "missing")
    assert [told[rank][1] for rank in (0, 2)] == [(1,), (1,)]
    assert 1.5 <= told[0][2] < 1.5 + LATE_S + 1
    assert run(2, asked_if_over, folders[1], "late") == [[6.0] * 5] * 2
    assert "failed: " in run(2, asked_if_over, folders[2], "dies")[0]
