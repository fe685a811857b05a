"""Differing calls are detected before data move, with the same error on every rank."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from holdfast import comm
from holdfast.core.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    GroupBroken,
    HoldfastError,
    InvalidValue,
)
from holdfast.training.collectives.groups import rank_hosts
from tests.unit.training.collectives.ranks import run

SIZE = 3
PROMPT_S = 6.0
LIMIT_S = 30.0

GroupCall = Callable[[dist.ProcessGroup], object]


def reduces(
    tensor: Callable[[], torch.Tensor], op: Any = dist.ReduceOp.SUM, limit_s: float = LIMIT_S
) -> GroupCall:
    return lambda group: comm.all_reduce(tensor(), op, group, timeout=limit_s)


USUAL = reduces(lambda: torch.ones(4))
#: The call of most ranks, and the call of rank 1.
CALLS: dict[str, tuple[GroupCall, GroupCall]] = {
    "elements": (USUAL, reduces(lambda: torch.ones(5))),
    "shape": (reduces(lambda: torch.ones(3, 2)), reduces(lambda: torch.ones(2, 3))),
    "dtype": (USUAL, reduces(lambda: torch.ones(4, dtype=torch.int32))),
    "operation": (USUAL, reduces(lambda: torch.ones(4), dist.ReduceOp.MAX)),
    "nothing": (USUAL, reduces(lambda: torch.ones(0))),
    "call": (USUAL, lambda group: comm.agree(1, group=group, timeout=LIMIT_S)),
}
REFUSED: dict[str, tuple[GroupCall, GroupCall]] = {
    "sparse": (USUAL, reduces(lambda: torch.ones(4).to_sparse())),
    "gradient": (USUAL, reduces(lambda: torch.ones(4, requires_grad=True))),
    "timeout": (USUAL, reduces(lambda: torch.ones(4), limit_s=-1)),
}


def run_cases(rank: int, names: list[str], late: int) -> list[Any]:
    return [run_case(rank, (CALLS | REFUSED)[name], late) for name in names]


def run_cases_on_two_hosts(rank: int, names: list[str], late: int) -> list[Any]:
    rank_hosts.host_identity = lambda: f"host {min(rank, 1)}"  # type: ignore[assignment]
    return run_cases(rank, names, late)


def run_case(rank: int, calls: tuple[GroupCall, GroupCall], late: int) -> Any:
    """Return the error, its duration, and the next call's error; rank 1 makes another call."""
    group = dist.new_group(range(SIZE))
    comm.all_reduce(torch.ones(2), group=group, timeout=20)
    time.sleep(0.3 if rank == late else 0)
    began = time.monotonic()
    failure = after = None
    try:
        calls[rank == 1](group)
    except HoldfastError as error:
        failure = error
    took = time.monotonic() - began
    try:
        comm.all_reduce(torch.ones(2), group=group, timeout=LIMIT_S)
    except HoldfastError as error:
        after = error
    comm.all_reduce(torch.ones(2), timeout=20)  # the other group still works
    return failure, took, after


@pytest.mark.parametrize("program", [run_cases, run_cases_on_two_hosts])
@pytest.mark.parametrize("late", [pytest.param(0, marks=pytest.mark.matrix), 1])
def test_differing_calls_raise_the_same_mismatch_on_all_ranks(
    program: Any, late: int, tmp_path: Path
) -> None:
    results = run(SIZE, program, tmp_path, list(CALLS), late, limit_s=120)
    for name, by_rank in zip(CALLS, zip(*results, strict=True), strict=True):
        assert [type(failure) for failure, _, _ in by_rank] == [CollectiveMismatch] * SIZE, (
            name,
            by_rank,
        )
        assert len({str(failure) for failure, _, _ in by_rank}) == 1
        assert by_rank[0][0].odd == (1,)
        assert "rank 1 called " in str(by_rank[0][0])
        assert "test_mismatch.py:" in str(by_rank[0][0])
        assert max(took for _, took, _ in by_rank) < PROMPT_S
        assert [type(after) for _, _, after in by_rank] == [GroupBroken] * SIZE


@pytest.mark.parametrize("late", [pytest.param(0, marks=pytest.mark.matrix), 1])
def test_rejection_on_one_rank_leaves_no_rank_waiting(late: int, tmp_path: Path) -> None:
    results = run(SIZE, run_cases, tmp_path, list(REFUSED), late, limit_s=120)
    for name, by_rank in zip(REFUSED, zip(*results, strict=True), strict=True):
        for rank, (failure, took, after) in enumerate(by_rank):
            assert isinstance(
                failure, InvalidValue | CollectiveMismatch if rank == 1 else CollectiveMismatch
            ), failure
            assert name in str(failure)
            assert took < PROMPT_S
            assert isinstance(after, GroupBroken)


def same_rejection(_rank: int) -> Any:
    for _ in range(2):
        with pytest.raises(InvalidValue):
            comm.all_reduce(torch.ones(4).to_sparse())
    return comm.all_reduce(torch.ones(2)).tolist()


def test_rejection_on_all_ranks_does_not_break_the_group(tmp_path: Path) -> None:
    assert run(2, same_rejection, tmp_path) == [[2.0, 2.0]] * 2


def time_out_early(rank: int) -> Any:
    """Rank 2 is missing; rank 1 times out early, and rank 0, with a longer timeout, too."""
    comm.all_reduce(torch.ones(2))
    if rank == 2:
        return None
    began = time.monotonic()
    with pytest.raises(CollectiveTimeout) as caught:
        comm.all_reduce(torch.ones(2), timeout=1.5 if rank == 1 else 30)
    return caught.value.missing, time.monotonic() - began


def test_timeout_on_one_rank_ends_the_call_on_all(tmp_path: Path) -> None:
    by_rank = run(SIZE, time_out_early, tmp_path)
    assert by_rank[0][0] == by_rank[1][0] == (2,)
    assert by_rank[0][1] < PROMPT_S
