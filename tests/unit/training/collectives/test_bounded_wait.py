"""Bounded collectives on real ranks end within the timeout, report missing ranks, and match torch's results."""

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
from holdfast.core.errors import CollectiveFailed, CollectiveTimeout, GroupBroken, InvalidValue
from holdfast.training.collectives.groups.group_info import GroupState
from tests.unit.training.collectives.ranks import run

LATE_S = 0.3


def rank_1_is_missing(rank: int) -> Any:
    if rank == 1:
        return None
    began = time.monotonic()
    with pytest.raises(CollectiveTimeout) as caught:
        comm.all_reduce(torch.ones(3), timeout=1.5)
    took = time.monotonic() - began
    with pytest.raises(GroupBroken) as second_error:
        comm.all_reduce(torch.ones(3))
    return str(caught.value), caught.value.missing, took, str(second_error.value)


def test_missing_rank_is_reported_with_the_call_site_and_the_group_is_broken(
    tmp_path: Path,
) -> None:
    results = run(3, rank_1_is_missing, tmp_path)
    for rank in (0, 2):
        text, missing, took, second_error = results[rank]
        assert missing == (1,)
        assert text.startswith(
            "all_reduce of 3 float32 (call 1 in group '0') at test_bounded_wait.py:"
        )
        assert "rank 1 did not arrive within 1.50 s" in text
        assert took < 1.5 + LATE_S + 1
        assert second_error.startswith(
            "process group '0' is not used again: all_reduce of 3 float32 timed out: rank 1 did not"
        )
    # the rank that called last learns of the timeout from the other
    assert max(results[rank][2] for rank in (0, 2)) >= 1.5


def rank_1_is_late(rank: int) -> Any:
    time.sleep(2.5 if rank == 1 else 0)
    tensor = torch.full((5,), float(rank + 1))
    comm.all_reduce(tensor, timeout=20)
    comm.all_reduce(tensor, timeout=20)
    return tensor.tolist()


def test_late_rank_only_delays_the_call(tmp_path: Path) -> None:
    assert run(2, rank_1_is_late, tmp_path) == [[6.0] * 5] * 2


def rank_1_exits(rank: int) -> Any:
    comm.all_reduce(torch.ones(2))
    if rank == 1:
        os._exit(0)
    for _ in range(50):
        try:
            comm.all_reduce(torch.ones(2), timeout=20)
        except CollectiveFailed as error:
            return str(error)
        time.sleep(0.05)
    return "no failure"


def test_exited_peer_fails_the_call_at_once(tmp_path: Path) -> None:
    assert "failed: " in run(2, rank_1_exits, tmp_path)[0]


CASES = st.tuples(
    st.integers(1, 400),  # elements
    st.integers(1, 150),  # elements of a chunk
    st.integers(1, 5),  # chunks in flight
    st.sampled_from(["float32", "float64", "int64", "int32", "uint8", "bfloat16"]),
    st.sampled_from(["SUM", "MAX", "MIN", "PRODUCT"]),
    st.booleans(),  # strided: every second element of a larger tensor
)


def reduce_in_chunks(rank: int, cases: list[tuple[int, int, int, str, str, bool]]) -> list[bool]:
    same = []
    for seed, (size, chunk, window, dtype, op, strided) in enumerate(cases):
        generator = torch.Generator().manual_seed(seed * 16 + rank)
        whole = torch.randint(0, 5, (2 * size,), generator=generator).to(getattr(torch, dtype))
        own = whole.clone()[::2] if strided else whole[:size].clone()
        expected = own.clone().contiguous()
        operation = getattr(dist.ReduceOp, op)
        dist.all_reduce(expected, operation)
        back = comm.all_reduce(own, operation, chunk=chunk, window=window, timeout=20)
        same.append(back is own and torch.equal(own, expected))
    return same


@given(st.lists(CASES, min_size=30, max_size=30))
@settings(max_examples=3, deadline=None)
def test_chunks_give_the_bits_of_one_call(
    tmp_path_factory: pytest.TempPathFactory, cases: list[Any]
) -> None:
    assert run(2, reduce_in_chunks, tmp_path_factory.mktemp("chunks"), cases) == [[True] * 30] * 2


def rejected_call(rank: int, what: str) -> None:
    tensor = torch.ones(4)
    if what == "sparse":
        comm.all_reduce(tensor.to_sparse())
    elif what == "gradient":
        comm.all_reduce(torch.ones(4, requires_grad=True))
    elif what == "time":
        comm.all_reduce(tensor, timeout=-1)
    elif what == "chunk":
        comm.all_reduce(tensor, chunk=0)
    elif what == "member":
        comm.all_reduce(tensor, group=dist.new_group([rank ^ 1]))
    elif what == "reduction":
        comm.agree(value=True, reduce="most")  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["sparse", "gradient", "time", "chunk", "reduction"])
def test_invalid_calls_are_rejected_on_every_rank(what: str, tmp_path: Path) -> None:
    results = run(2, rejected_call, tmp_path, what)
    assert [type(each) for each in results] == [InvalidValue] * 2
    assert str(results[0]) == str(results[1])


def reduce_empty_and_single(rank: int) -> Any:
    group = dist.new_group([0])
    empty = comm.all_reduce(torch.ones(0))
    for number in range(6):  # in and out of inference mode, sums share a scratch tensor
        with torch.inference_mode(number % 3 == 1):
            one = comm.all_reduce(torch.full((3,), number + 1.0), chunk=None)
        assert one.tolist() == [2 * number + 2.0] * 3
    if rank:
        with pytest.raises(InvalidValue, match="not a member"):
            comm.all_reduce(torch.ones(1), group=group)
        return empty.numel()
    return empty.numel() + comm.all_reduce(torch.ones(1), group=group).item()


def test_empty_tensor_and_group_of_one(tmp_path: Path) -> None:
    assert run(2, reduce_empty_and_single, tmp_path) == [1.0, 0]


def decide(rank: int) -> list[Any]:
    return [
        comm.agree(rank == 2),
        comm.agree(rank == 2, "all"),
        comm.agree(rank < 3, "all"),
        comm.agree(rank + 0.5, "max"),
        comm.agree(rank + 0.5, "min"),
        comm.safe_all_reduce(torch.ones(1)),
    ]


def test_all_ranks_get_the_same_decision(tmp_path: Path) -> None:
    assert run(3, decide, tmp_path) == [[True, False, True, 2.5, 0.5, True]] * 3


def decide_with_reasons(rank: int) -> list[Any]:
    reason = f"no memory at step {rank}"
    return [
        comm.agree(rank >= 1, reason=reason),
        comm.agree(value=False, reason=reason),
        comm.agree(rank == 1, "all", reason=reason),
        comm.agree(value=True, reduce="all", reason=reason),
    ]


def test_decision_names_the_ranks_that_caused_it_and_why(tmp_path: Path) -> None:
    results = run(3, decide_with_reasons, tmp_path)
    assert results[0] == results[1] == results[2]
    out_of_memory, none, not_all, all_agree = results[0]
    assert out_of_memory
    assert str(out_of_memory) == "rank 1: no memory at step 1; rank 2: no memory at step 2"
    assert not none
    assert none.reasons == {}
    assert not not_all
    assert list(not_all.reasons) == [0, 2]
    assert all_agree
    assert all_agree.reasons == {}


def use_barriers(rank: int) -> Any:
    for _ in range(3):
        comm.barrier("step", timeout=20)
    if rank == 1:
        return None
    if rank == 0:  # barriers work although the group is broken
        assert not comm.safe_all_reduce(torch.ones(1), timeout=0.2)
    with pytest.raises(CollectiveTimeout) as caught:
        comm.barrier("end", timeout=3.0)
    return str(caught.value), caught.value.missing


def test_barrier_reports_missing_ranks_without_a_communicator(tmp_path: Path) -> None:
    results = run(3, use_barriers, tmp_path)
    assert results[0] == results[2]
    assert results[0][1] == (1,)
    assert results[0][0].startswith(
        "barrier 'end' did not complete: rank 1 did not arrive within 3"
    )


def poll_works(rank: int, program: str) -> Any:
    """Poll works, as on NCCL, where an expired wait aborts the communicator."""
    GroupState.can_repeat_wait = False  # type: ignore[assignment]
    return {"missing": rank_1_is_missing, "late": rank_1_is_late, "dies": rank_1_exits}[program](
        rank
    )


def test_works_that_cannot_be_waited_for_twice_are_polled(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("missing", "late", "dies")]
    for folder in folders:
        folder.mkdir()
    results = run(3, poll_works, folders[0], "missing")
    assert [results[rank][1] for rank in (0, 2)] == [(1,), (1,)]
    assert 1.5 <= results[0][2] < 1.5 + LATE_S + 1
    assert run(2, poll_works, folders[1], "late") == [[6.0] * 5] * 2
    assert "failed: " in run(2, poll_works, folders[2], "dies")[0]
