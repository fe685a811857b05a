"""Failures of reductions in shared memory on real ranks: errors in time, no wrong sums."""

from __future__ import annotations

import os
import resource
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from holdfast.core.errors import CollectiveFailed, CollectiveTimeout, GroupBroken, InvalidValue
from holdfast.training.collectives import bounded_wait
from holdfast.training.collectives.bounded_wait import begin_call
from holdfast.training.collectives.groups.arrivals import announce_arrival
from holdfast.training.collectives.groups.group_info import job_store, state_of
from holdfast.training.collectives.shared_memory import areas, transport
from holdfast.training.collectives.shared_memory.peers import PeerProcesses
from holdfast.training.collectives.shared_memory.transport import shared_tensor
from tests.unit.training.collectives.ranks import run

LIMIT_S = 20
SMALL, LARGE = 100, 900_000


def reduce(
    tensor: torch.Tensor, limit_s: float = LIMIT_S, group: Any = None, *, after: str = ""
) -> torch.Tensor:
    """Reduce in place; ``after`` names a point at which ranks 0 and 2 first enter the call."""
    call = begin_call(state_of(group), f"all_reduce of {tensor.numel()}", limit_s)
    if after:
        announce_arrival(call)
        job_store().set(f"{after}/{dist.get_rank()}", "")
        wait_for_keys(f"{after}/0", f"{after}/2")
    assert transport.is_available(call)
    transport.reduce_in_memory(tensor, dist.ReduceOp.SUM, call)
    return tensor


def wait_for_keys(*names: str) -> None:
    """Wait until other ranks have set these keys; a sleep would depend on the machine's load."""
    job_store().wait(list(names), timedelta(seconds=LIMIT_S))


def rank_1_is_late(rank: int) -> Any:
    """Rank 1 enters after the others have timed out and changed their tensors."""
    results = []
    for kind in ("small", "large", "shared"):
        group = dist.new_group([0, 1, 2])
        tensor = shared_tensor((LARGE,), group=group) if kind == "shared" else torch.ones(SMALL)
        tensor.fill_(1)
        reduce(tensor, group=group)
        tensor = torch.ones(LARGE) if kind == "large" else tensor.fill_(1)
        if rank == 1:
            wait_for_keys(f"{kind} timed out/0", f"{kind} timed out/2")
        began = time.monotonic()
        try:
            if rank == 1:
                reduce(tensor, LIMIT_S, group)
            else:
                reduce(tensor, 1.5, group, after=kind)
            results.append((kind, tensor.unique().tolist()))
        except CollectiveTimeout as error:
            results.append((kind, error.missing, time.monotonic() - began < LIMIT_S))
        except GroupBroken:
            results.append((kind, "broken"))
        tensor.fill_(1_000)
        if rank != 1:
            with pytest.raises(GroupBroken):
                reduce(tensor, group=group)
            job_store().set(f"{kind} timed out/{rank}", "")
    return results


def test_missing_rank_is_reported_and_gets_no_wrong_sum_when_it_is_late(tmp_path: Path) -> None:
    first, late, last = run(3, rank_1_is_late, tmp_path)
    assert first == last == [(kind, (1,), True) for kind in ("small", "large", "shared")]
    assert late[0] == ("small", [3.0])  # all ranks had written their tensors
    assert late[1:] == [("large", (1,), True), ("shared", (1,), True)]


def rank_1_exits(rank: int, visible: bool) -> Any:  # noqa: FBT001
    """Rank 1 exits once it has written its first chunk, while the others wait for its slice."""
    reduce(torch.ones(LARGE))
    memory = areas._memories[dist.group.WORLD]
    if not visible:  # as in a container with its own pid namespace
        memory._peers = PeerProcesses({})
    if rank == 1:
        bounded_wait.ANNOUNCE_AFTER_S = LIMIT_S  # it never announces its arrival
        memory.finish_slice = lambda _: os._exit(0)
        reduce(torch.ones(LARGE))
    began = time.monotonic()
    with pytest.raises(CollectiveFailed if visible else CollectiveTimeout) as caught:
        reduce(torch.ones(LARGE), LIMIT_S if visible else 1.5, after="enter")
    return "rank 1" in str(caught.value), time.monotonic() - began < LIMIT_S


@pytest.mark.parametrize("visible", [True, pytest.param(False, marks=pytest.mark.matrix)])
def test_exited_rank_is_reported(visible: bool, tmp_path: Path) -> None:  # noqa: FBT001
    results = run(3, rank_1_exits, tmp_path, visible)
    assert results == [(True, True), None, (True, True)]


def rank_1_is_interrupted(rank: int) -> Any:
    tensor = shared_tensor((LARGE,))
    reduce(tensor)
    memory = areas._memories[dist.group.WORLD]
    if rank == 1:
        memory.finish_slice = lambda _: signal.raise_signal(signal.SIGINT)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt if rank == 1 else GroupBroken) as caught:
        reduce(tensor)
    with pytest.raises(GroupBroken):
        reduce(tensor)
    return time.monotonic() - began < LIMIT_S, "was interrupted" in str(caught.value)


def test_interrupted_rank_releases_the_others(tmp_path: Path) -> None:
    assert run(3, rank_1_is_interrupted, tmp_path) == [(True, True), (True, False), (True, True)]


def different_views(rank: int) -> Any:
    shared = shared_tensor((LARGE,))
    shared.fill_(1)
    errors = []
    for own in (shared if rank else torch.ones(LARGE), shared[rank : rank + LARGE // 2]):
        with pytest.raises(InvalidValue) as caught:
            reduce(own)
        errors.append(str(caught.value))
    return errors, reduce(shared).unique().tolist()  # the group still works


def test_different_views_are_rejected_on_all_ranks(tmp_path: Path) -> None:
    first, second = run(2, different_views, tmp_path)
    assert first == second
    assert "in a shared tensor only on some ranks" in first[0][0]
    assert first[1] == [2.0]


def reduce_without_memory(rank: int) -> Any:
    if rank == 0:  # creates the segment
        resource.setrlimit(resource.RLIMIT_FSIZE, (16384, resource.RLIM_INFINITY))
    call = begin_call(state_of(None), "all_reduce", LIMIT_S)
    tensor = shared_tensor((2, 3), torch.int64)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    dist.all_reduce(tensor.fill_(1))
    return transport.is_available(call), tensor.tolist()


def test_without_shared_memory_on_one_rank_no_rank_uses_it(tmp_path: Path) -> None:
    assert run(2, reduce_without_memory, tmp_path) == [(False, [[2] * 3] * 2)] * 2


def reduce_views(rank: int) -> Any:
    values = []
    for round_ in range(4):  # a deleted tensor frees its memory
        shared = shared_tensor((3, 50_000), torch.float64)
        shared[1:].fill_(rank + round_)
        reduce(shared[1:].view(-1))
        values.append((shared[0].unique().tolist(), shared[1:].unique().tolist()))
    segments = areas._memories[dist.group.WORLD]._tensors
    alive = [tensor for tensor in segments if tensor.segment() is not None]
    del shared
    remaining = [tensor for tensor in segments if tensor.segment() is not None]
    return (
        values,
        len(alive),
        len(remaining),
        shared_tensor((0,)).numel(),
        shared_tensor((2,), torch.bool).tolist(),
    )


def test_part_of_a_shared_tensor_is_reduced_and_its_memory_is_freed(tmp_path: Path) -> None:
    values = [([0.0], [2.0 * round_ + 1]) for round_ in range(4)]
    assert run(2, reduce_views, tmp_path) == [(values, 1, 0, 0, [False, False])] * 2
