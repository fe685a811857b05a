"""Ranks that part are named on every rank, at the same call; training and its group notice nothing of the checks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from holdfast import comm
from holdfast.errors import CollectiveTimeout, OutOfLockstep
from holdfast.runtime.comm.lockstep import bits, compare
from tests.runtime.comm.ranks import run

pytestmark = pytest.mark.slow


def parts(rank: int) -> list[Any]:
    """In turn: a rank a step behind, one with a batch more, one with a flipped bit; each in a group of its own."""
    told = []
    for what in ("nothing", "step", "batches", "parameters", "all is well again"):
        group = dist.new_group([0, 1, 2])
        model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Linear(3, 1))
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
        found: Any = None
        for step in range(30):
            odd = step >= 12 and rank == 2
            if odd and what == "parameters" and step == 12:
                model[1].bias.data.view(torch.int32)[0] ^= 1
            try:
                comm.lockstep(
                    step - (odd and what == "step"), every=5, batches=3 * step + (odd and what == "batches"),
                    parameters=model.parameters(), group=group, timeout=20,
                )  # fmt: skip
            except OutOfLockstep as error:
                found = (step, str(error).partition(f"group '{group.group_name}' ")[2], error.odd)
                break
            dist.all_reduce(torch.ones(3))
        told.append(found)
    return told


def test_who_parts_is_named_on_every_rank_at_the_same_step(tmp_path: Path) -> None:
    told = run(3, parts, tmp_path)
    assert told[0] == told[1] == told[2]
    nothing, step, batches, parameters, again = told[0]
    assert (nothing, again) == (None, None)
    assert step[::2] == (20, (2,))  # parted at 12, checked at 15, looked at one check later
    assert step[1].startswith("are not in lockstep: rank 2 is at step 14, ranks 0-1 at 15; ")
    assert batches[1].startswith("are not in lockstep: rank 2 had 46 batches, ranks 0-1 45; ")
    assert parameters[::2] == (20, (2,))
    assert "rank 2 has other parameters (checksum " in parameters[1]


def stays_away(rank: int) -> Any:
    for step in range(6):
        if rank == 1 and step == 3:
            return None
        try:
            comm.lockstep(step, every=1, timeout=1.5)
        except CollectiveTimeout as error:
            return step, error.missing
    return "nothing was found"


def test_one_that_stays_away_is_named_at_the_next_check(tmp_path: Path) -> None:
    assert run(2, stays_away, tmp_path)[0] == (4, (1,))


def rotates(rank: int) -> list[int]:
    """With room for one parameter in a check, a difference in the third is found when its turn comes."""
    sys.modules["holdfast.runtime.comm.lockstep"].BYTES_A_CHECK = 1  # the function has the name of its module
    parameters = [torch.zeros(8), torch.zeros(8), torch.full((8,), float(rank)), torch.zeros(8)]
    for step in range(10):
        try:
            comm.lockstep(step, every=1, parameters=parameters, timeout=20)
        except OutOfLockstep:
            return [step]
    return []


def test_parameters_are_read_in_turn(tmp_path: Path) -> None:
    assert run(2, rotates, tmp_path) == [[3]] * 2


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8, torch.bool, torch.complex64]
)
@pytest.mark.parametrize("size", [0, 1, 7, 8, 33])
def test_any_bit_counts(dtype: torch.dtype, size: int) -> None:
    tensor = torch.zeros(size, dtype=dtype)
    alike = bits(tensor).item()
    assert bits(tensor.clone()).item() == alike
    for at in range(size):
        other = tensor.clone()
        other[at] = 1
        assert bits(other).item() != alike


def test_views_and_the_order_of_memory() -> None:
    tensor = torch.arange(24.0).reshape(4, 6)
    assert bits(tensor.t()).item() == bits(tensor.t().contiguous()).item()
    assert bits(tensor[1:]).item() == bits(tensor[1:].clone()).item()
    assert bits(torch.arange(9.0)[1:]).dtype == torch.int64


def test_several_that_differ_are_told_with_what_they_have() -> None:
    have = {0: (5, 1, -1), 1: (5, 1, -1), 2: (4, 1, -1), 3: (3, 2, -1), 4: (5, 1, -1)}
    assert compare(have) == (
        (2, 3), "rank 2 is at step 4, rank 3 is at step 3, ranks 0-1,4 at 5; rank 3 had 2 batches, ranks 0-2,4 1",
    )  # fmt: skip
