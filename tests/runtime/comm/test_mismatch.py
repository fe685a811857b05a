"""Calls that differ over ranks are found before data move: one clear error on every rank, none left waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from holdfast import comm
from holdfast.errors import BadValue, CollectiveMismatch, CollectiveTimeout, GroupBroken, HoldfastError
from holdfast.runtime.comm import hosts
from tests.runtime.comm.ranks import run

SIZE = 3
PROMPT_S = 6.0
LIMIT_S = 30.0

Call = Callable[[dist.ProcessGroup], object]


def reduces(tensor: Callable[[], torch.Tensor], op: Any = dist.ReduceOp.SUM, limit_s: float = LIMIT_S) -> Call:
    return lambda group: comm.all_reduce(tensor(), op, group, timeout=limit_s)


USUAL = reduces(lambda: torch.ones(4))
#: What most ranks call, and what one calls.
CALLS: dict[str, tuple[Call, Call]] = {
    "elements": (USUAL, reduces(lambda: torch.ones(5))),
    "shape": (reduces(lambda: torch.ones(3, 2)), reduces(lambda: torch.ones(2, 3))),
    "dtype": (USUAL, reduces(lambda: torch.ones(4, dtype=torch.int32))),
    "operation": (USUAL, reduces(lambda: torch.ones(4), dist.ReduceOp.MAX)),
    "nothing": (USUAL, reduces(lambda: torch.ones(0))),
    "call": (USUAL, lambda group: comm.agree(1, group=group, timeout=LIMIT_S)),
}
REFUSED: dict[str, tuple[Call, Call]] = {
    "sparse": (USUAL, reduces(lambda: torch.ones(4).to_sparse())),
    "gradient": (USUAL, reduces(lambda: torch.ones(4, requires_grad=True))),
    "time limit": (USUAL, reduces(lambda: torch.ones(4), limit_s=-1)),
}


def differ(rank: int, names: list[str], late: int) -> list[Any]:
    return [differs(rank, (CALLS | REFUSED)[name], late) for name in names]


def differ_on_two_hosts(rank: int, names: list[str], late: int) -> list[Any]:
    hosts.identity = lambda: f"host {min(rank, 1)}"  # type: ignore[assignment]
    return differ(rank, names, late)


def differs(rank: int, calls: tuple[Call, Call], late: int) -> Any:
    """The error, how long it took, the error of the next call in the group; rank 1 makes another call."""
    group = dist.new_group(range(SIZE))
    comm.all_reduce(torch.ones(2), group=group, timeout=20)
    time.sleep(0.3 if rank == late else 0)
    begun = time.monotonic()
    told = after = None
    try:
        calls[rank == 1](group)
    except HoldfastError as error:
        told = error
    took = time.monotonic() - begun
    try:
        comm.all_reduce(torch.ones(2), group=group, timeout=LIMIT_S)
    except HoldfastError as error:
        after = error
    comm.all_reduce(torch.ones(2), timeout=20)  # the other group is none the worse
    return told, took, after


@pytest.mark.parametrize("program", [differ, differ_on_two_hosts])
@pytest.mark.parametrize("late", [pytest.param(0, marks=pytest.mark.matrix), 1])
def test_calls_that_differ(program: Any, late: int, tmp_path: Path) -> None:
    results = run(SIZE, program, tmp_path, list(CALLS), late, limit_s=120)
    for name, found in zip(CALLS, zip(*results, strict=True), strict=True):
        assert [type(told) for told, _, _ in found] == [CollectiveMismatch] * SIZE, (name, found)
        assert len({str(told) for told, _, _ in found}) == 1
        assert found[0][0].odd == (1,)
        assert "rank 1 called " in str(found[0][0])
        assert "test_mismatch.py:" in str(found[0][0])
        assert max(took for _, took, _ in found) < PROMPT_S
        assert [type(after) for _, _, after in found] == [GroupBroken] * SIZE


@pytest.mark.parametrize("late", [pytest.param(0, marks=pytest.mark.matrix), 1])
def test_what_one_rank_may_not_give_leaves_nobody_waiting(late: int, tmp_path: Path) -> None:
    results = run(SIZE, differ, tmp_path, list(REFUSED), late, limit_s=120)
    for name, found in zip(REFUSED, zip(*results, strict=True), strict=True):
        for rank, (told, took, after) in enumerate(found):
            assert isinstance(told, BadValue | CollectiveMismatch if rank == 1 else CollectiveMismatch), told
            assert name in str(told)
            assert took < PROMPT_S
            assert isinstance(after, GroupBroken)


def same_mistake(_rank: int) -> Any:
    for _ in range(2):
        with pytest.raises(BadValue):
            comm.all_reduce(torch.ones(4).to_sparse())
    return comm.all_reduce(torch.ones(2)).tolist()


def test_a_mistake_that_all_make_alike_harms_no_group(tmp_path: Path) -> None:
    assert run(2, same_mistake, tmp_path) == [[2.0, 2.0]] * 2


def leaves_early(rank: int) -> Any:
    """Rank 1 waits for a second only; rank 2 comes never. Rank 0, more patient, learns of it."""
    comm.all_reduce(torch.ones(2))
    if rank == 2:
        return None
    begun = time.monotonic()
    with pytest.raises(CollectiveTimeout) as caught:
        comm.all_reduce(torch.ones(2), timeout=1.5 if rank == 1 else 30)
    return caught.value.missing, time.monotonic() - begun


def test_when_one_gives_up_the_others_do_not_wait_on(tmp_path: Path) -> None:
    found = run(SIZE, leaves_early, tmp_path)
    assert found[0][0] == found[1][0] == (2,)
    assert found[0][1] < PROMPT_S
