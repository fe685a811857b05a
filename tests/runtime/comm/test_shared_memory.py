"""Reduced in shared memory by real ranks, when something goes wrong: an error in time, the group left, no wrong sum."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from holdfast.errors import BadValue, CollectiveFailed, CollectiveTimeout, GroupBroken
from holdfast.runtime.comm import areas, shared_memory
from holdfast.runtime.comm.groups import state_of
from holdfast.runtime.comm.peers import Peers
from holdfast.runtime.comm.shared_memory import shared_tensor
from holdfast.runtime.comm.waiting import begin
from tests.runtime.comm.ranks import run

LIMIT_S = 20
SMALL, LARGE = 100, 900_000


def reduce(tensor: torch.Tensor, limit_s: float = LIMIT_S, group: Any = None) -> torch.Tensor:
    call = begin(state_of(group), f"all_reduce of {tensor.numel()}", limit_s)
    assert shared_memory.usable(call)
    shared_memory.reduce_in_memory(tensor, dist.ReduceOp.SUM, call)
    return tensor


def one_does_not_come(rank: int) -> Any:
    """Rank 1 comes when the others have given up, and their tensors are no more what they were."""
    told = []
    for kind in ("small", "large", "shared"):
        group = dist.new_group([0, 1, 2])
        tensor = shared_tensor((LARGE,), group=group) if kind == "shared" else torch.ones(SMALL)
        tensor.fill_(1)
        reduce(tensor, group=group)
        tensor = torch.ones(LARGE) if kind == "large" else tensor.fill_(1)
        time.sleep(2.5 if rank == 1 else 0)
        begun = time.monotonic()
        try:
            reduce(tensor, 1.5 if rank != 1 else LIMIT_S, group)
            told.append((kind, tensor.unique().tolist()))
        except CollectiveTimeout as error:
            told.append((kind, error.missing, time.monotonic() - begun < 4))
        except GroupBroken:
            told.append((kind, "broken", time.monotonic() - begun < 4))
        tensor.fill_(1_000)
        if rank != 1:
            with pytest.raises(GroupBroken):
                reduce(tensor, group=group)
    return told


def test_who_does_not_come_is_named_and_finds_no_wrong_sum_when_it_comes(tmp_path: Path) -> None:
    first, late, last = run(3, one_does_not_come, tmp_path)
    assert first == last == [(kind, (1,), True) for kind in ("small", "large", "shared")]
    assert late[0] == ("small", [3.0])  # all had laid down what they gave
    assert late[1:] == [("large", (1,), True), ("shared", (1,), True)]


def one_dies(rank: int, seen: bool) -> Any:  # noqa: FBT001
    """Rank 1 goes when it has laid down its first piece, which the others wait for it to reduce."""
    reduce(torch.ones(LARGE))
    memory = areas._memories[dist.group.WORLD]
    if not seen:  # as in a container with process ids of its own
        memory._peers = Peers({})
    if rank == 1:
        memory.reduced = lambda _: os._exit(0)
        reduce(torch.ones(LARGE))
    begun = time.monotonic()
    with pytest.raises(CollectiveFailed if seen else CollectiveTimeout) as caught:
        reduce(torch.ones(LARGE), LIMIT_S if seen else 1.5)
    return "rank 1" in str(caught.value), time.monotonic() - begun < 4


@pytest.mark.parametrize("seen", [True, pytest.param(False, marks=pytest.mark.matrix)])
def test_one_that_is_gone_is_named(seen: bool, tmp_path: Path) -> None:  # noqa: FBT001
    told = run(3, one_dies, tmp_path, seen)
    assert told == [(True, True), None, (True, True)]


def one_is_interrupted(rank: int) -> Any:
    tensor = shared_tensor((LARGE,))
    reduce(tensor)
    memory = areas._memories[dist.group.WORLD]
    if rank == 1:
        memory.reduced = lambda _: signal.raise_signal(signal.SIGINT)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt if rank == 1 else GroupBroken) as caught:
        reduce(tensor)
    with pytest.raises(GroupBroken):
        reduce(tensor)
    return time.monotonic() - begun < 4, "was interrupted in it" in str(caught.value)


def test_one_that_is_interrupted_lets_the_others_go(tmp_path: Path) -> None:
    assert run(3, one_is_interrupted, tmp_path) == [(True, True), (True, False), (True, True)]


def different_places(rank: int) -> Any:
    shared = shared_tensor((LARGE,))
    shared.fill_(1)
    told = []
    for given in (shared if rank else torch.ones(LARGE), shared[rank : rank + LARGE // 2]):
        with pytest.raises(BadValue) as caught:
            reduce(given)
        told.append(str(caught.value))
    return told, reduce(shared).unique().tolist()  # the group is as good as before


def test_what_lies_elsewhere_on_another_rank_is_refused_on_all(tmp_path: Path) -> None:
    first, second = run(2, different_places, tmp_path)
    assert first == second
    assert "shared tensor on some ranks only" in first[0][0]
    assert first[1] == [2.0]


def no_room(rank: int) -> Any:
    if rank == 0:  # makes the segment
        resource.setrlimit(resource.RLIMIT_FSIZE, (16384, resource.RLIM_INFINITY))
    call = begin(state_of(None), "all_reduce", LIMIT_S)
    tensor = shared_tensor((2, 3), torch.int64)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    dist.all_reduce(tensor.fill_(1))
    return shared_memory.usable(call), tensor.tolist()


def test_where_there_is_no_room_all_do_without(tmp_path: Path) -> None:
    assert run(2, no_room, tmp_path) == [(False, [[2] * 3] * 2)] * 2


def views_and_ends(rank: int) -> Any:
    kept = []
    for round_ in range(4):  # a tensor that is gone leaves its memory to others
        shared = shared_tensor((3, 50_000), torch.float64)
        shared[1:].fill_(rank + round_)
        reduce(shared[1:].view(-1))
        kept.append((shared[0].unique().tolist(), shared[1:].unique().tolist()))
    segments = areas._memories[dist.group.WORLD]._tensors
    alive = [tensor for tensor in segments if tensor.segment() is not None]
    del shared
    gone = [tensor for tensor in segments if tensor.segment() is not None]
    return kept, len(alive), len(gone), shared_tensor((0,)).numel(), shared_tensor((2,), torch.bool).tolist()


def test_a_part_of_a_shared_tensor_is_reduced_and_its_memory_given_back(tmp_path: Path) -> None:
    kept = [([0.0], [2.0 * round_ + 1]) for round_ in range(4)]
    assert run(2, views_and_ends, tmp_path) == [(kept, 1, 0, 0, [False, False])] * 2
