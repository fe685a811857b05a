"""Results are copied once their operation has completed, and memory in use is not reused."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from holdfast.training.collectives.groups.arrivals import BoundedCall
from holdfast.training.collectives.groups.group_info import GroupState
from holdfast.training.collectives.scratch import (
    PendingCopy,
    ReusableScratch,
    copy_back_in_order,
    drop_scratch,
    keep_scratch,
    reusable_scratch_copy,
    scratch_copy,
)

LARGE = 9_000_000  # float32: more than malloc caches


class Group:
    """Supports weak references, as a process group."""


@pytest.fixture
def call() -> BoundedCall:
    group: Any = Group()
    state = GroupState(weakref.ref(group), "0", (0,), torch.device("cpu"), 1)
    return BoundedCall("all_reduce", state, 1, 60.0, 60.0, 60.0, 60.0)


def test_result_is_copied_when_the_next_work_is_requested_and_not_after_an_error() -> None:
    targets, started_indices = [torch.zeros(2) for _ in range(5)], []

    def started() -> Iterator[PendingCopy]:
        for at, target in enumerate(targets):
            started_indices.append(at)
            work: Any = f"work {at}"
            yield work, torch.full((2,), at + 1.0), target

    works: Iterator[dist.Work | str] = copy_back_in_order(started(), 2)
    assert next(works) == "work 0"
    assert started_indices == [0, 1]
    assert targets[0].tolist() == [0, 0]
    assert next(works) == "work 1"
    assert started_indices == [0, 1, 2]
    del works  # as if the wait for the second one raised
    assert [target[0].item() for target in targets] == [1, 0, 0, 0, 0]


def test_all_results_are_copied_unless_they_ran_on_their_target(call: BoundedCall) -> None:
    targets = [torch.zeros(2) for _ in range(3)]
    call.owns_tensor = True
    same = scratch_copy(targets[2], call)
    work: Any = "work"
    started: list[PendingCopy] = [
        (work, torch.ones(2), targets[0]),
        (work, torch.ones(2), targets[1]),
        (work, same, targets[2]),
    ]
    assert len(list(copy_back_in_order(started, 2))) == 3
    assert same is targets[2]
    assert [target[0].item() for target in targets] == [1, 1, 0]


def test_cached_memory_is_unavailable_while_an_operation_may_write_to_it(call: BoundedCall) -> None:
    flat = torch.ones(LARGE)
    first = reusable_scratch_copy(flat, call)
    assert ReusableScratch not in call.state.cache
    keep_scratch(first, call)
    second = reusable_scratch_copy(flat.fill_(2), call)
    assert second is first
    assert second[-1].item() == 2
    third = reusable_scratch_copy(flat, call)  # the second is pending, or its call has failed
    assert third.data_ptr() != second.data_ptr()
    keep_scratch(third, call)
    drop_scratch(call.state)
    assert ReusableScratch not in call.state.cache


def test_cached_memory_is_reused_only_for_the_same_kind_of_tensor(call: BoundedCall) -> None:
    for other in (torch.ones(LARGE + 1), torch.ones(LARGE, dtype=torch.int32)):
        keep_scratch(torch.ones(LARGE), call)
        scratch = reusable_scratch_copy(other, call)
        assert torch.equal(scratch, other)
    keep_scratch(torch.ones(100), call)
    assert ReusableScratch not in call.state.cache  # malloc caches small tensors
    with torch.inference_mode():
        keep_scratch(reusable_scratch_copy(torch.ones(LARGE), call), call)
    assert torch.equal(reusable_scratch_copy(torch.ones(LARGE), call), torch.ones(LARGE))
