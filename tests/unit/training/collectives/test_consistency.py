"""Lockstep checks report diverged ranks on every rank, at the same call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from holdfast import comm
from holdfast.core.errors import CollectiveTimeout, RanksOutOfSync
from holdfast.training.collectives import consistency
from holdfast.training.collectives.consistency import describe_differences, sum_bits
from tests.unit.training.collectives.ranks import run

pytestmark = pytest.mark.slow


def diverge(rank: int) -> list[Any]:
    """Test a rank one step behind, one batch ahead, and with a flipped bit, each in a new group."""
    results = []
    for what in ("nothing", "step", "batches", "parameters", "nothing again"):
        group = dist.new_group([0, 1, 2])
        model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Linear(3, 1))
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
        outcome: Any = None
        for step in range(30):
            odd = step >= 12 and rank == 2
            if odd and what == "parameters" and step == 12:
                model[1].bias.data.view(torch.int32)[0] ^= 1
            try:
                comm.lockstep(
                    step - (odd and what == "step"),
                    every=5,
                    batches=3 * step + (odd and what == "batches"),
                    parameters=model.parameters(),
                    group=group,
                    timeout=20,
                )
            except RanksOutOfSync as error:
                outcome = (step, str(error).partition(f"group '{group.group_name}' ")[2], error.odd)
                break
            dist.all_reduce(torch.ones(3))
        results.append(outcome)
    return results


def test_diverged_rank_is_reported_on_every_rank_at_the_same_step(tmp_path: Path) -> None:
    results = run(3, diverge, tmp_path)
    assert results[0] == results[1] == results[2]
    nothing, step, batches, parameters, again = results[0]
    assert (nothing, again) == (None, None)
    assert step[::2] == (20, (2,))  # diverged at 12, checked at 15, reported one check later
    assert step[1].startswith("are not in lockstep: rank 2 is at step 14, ranks 0-1 at 15; ")
    assert batches[1].startswith("are not in lockstep: rank 2 had 46 batches, ranks 0-1 45; ")
    assert parameters[::2] == (20, (2,))
    assert "rank 2 has other parameters (checksum " in parameters[1]


def skip_check(rank: int) -> Any:
    for step in range(6):
        if rank == 1 and step == 3:
            return None
        try:
            comm.lockstep(step, every=1, timeout=1.5)
        except CollectiveTimeout as error:
            return step, error.missing
    return "no timeout"


def test_missing_rank_is_reported_at_the_next_check(tmp_path: Path) -> None:
    assert run(2, skip_check, tmp_path)[0] == (4, (1,))


def rotate_parameters(rank: int) -> list[int]:
    """With one parameter per check, a difference in the third is found by the third check."""
    consistency.BYTES_PER_CHECK = 1
    parameters = [torch.zeros(8), torch.zeros(8), torch.full((8,), float(rank)), torch.zeros(8)]
    for step in range(10):
        try:
            comm.lockstep(step, every=1, parameters=parameters, timeout=20)
        except RanksOutOfSync:
            return [step]
    return []


def test_parameters_are_checked_in_turn(tmp_path: Path) -> None:
    assert run(2, rotate_parameters, tmp_path) == [[3]] * 2


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.float64, torch.uint8, torch.bool, torch.complex64],
)
@pytest.mark.parametrize("size", [0, 1, 7, 8, 33])
def test_every_bit_changes_the_checksum(dtype: torch.dtype, size: int) -> None:
    tensor = torch.zeros(size, dtype=dtype)
    alike = sum_bits(tensor).item()
    assert sum_bits(tensor.clone()).item() == alike
    for at in range(size):
        other = tensor.clone()
        other[at] = 1
        assert sum_bits(other).item() != alike


def test_checksum_is_independent_of_memory_layout() -> None:
    tensor = torch.arange(24.0).reshape(4, 6)
    assert sum_bits(tensor.t()).item() == sum_bits(tensor.t().contiguous()).item()
    assert sum_bits(tensor[1:]).item() == sum_bits(tensor[1:].clone()).item()
    assert sum_bits(torch.arange(9.0)[1:]).dtype == torch.int64


def test_all_differing_ranks_are_described() -> None:
    values = {0: (5, 1, -1), 1: (5, 1, -1), 2: (4, 1, -1), 3: (3, 2, -1), 4: (5, 1, -1)}
    assert describe_differences(values) == (
        (2, 3),
        (
            "rank 2 is at step 4, rank 3 is at step 3, ranks 0-1,4 at 5; "
            "rank 3 had 2 batches, ranks 0-2,4 1"
        ),
    )
