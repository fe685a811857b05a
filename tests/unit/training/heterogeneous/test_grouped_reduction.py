"""Gradients reduced by groups equal a plain all-reduce, without deadlocks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import holdfast
from holdfast.core.errors import InvalidValue
from holdfast.training.heterogeneous.gpu_kinds import RankSpeed, RankSpeeds
from tests.unit.training.collectives.ranks import run

pytestmark = pytest.mark.slow
#: Two fast ranks and three slow ones, interleaved.
SPEEDS = RankSpeeds(
    tuple(RankSpeed(rank, "", (1,), (1.0 if rank in (0, 3) else 3.0,)) for rank in range(5))
)


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 8))


def compare_with_plain_ddp(rank: int) -> tuple[float, tuple[tuple[int, ...], ...], bool]:
    """Return the largest relative difference from DDP's gradients over 3 steps with several buckets."""
    plain = DistributedDataParallel(network(), bucket_cap_mb=0.02)
    hooked = DistributedDataParallel(network(), bucket_cap_mb=0.02)
    hierarchy = holdfast.reduce_by_groups(hooked, SPEEDS, timeout=30)
    inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(rank))
    difference = 0.0
    for _ in range(3):
        for model in (plain, hooked):
            model.zero_grad()
            model(inputs).square().mean().backward()
        pairs = [
            (a.grad, b.grad) for a, b in zip(plain.parameters(), hooked.parameters(), strict=True)
        ]
        difference = max(
            difference, *((a - b).abs().max().item() / a.abs().max().item() for a, b in pairs)
        )
    own = torch.cat([each.grad.flatten() for each in hooked.parameters()])
    gathered = [torch.empty_like(own) for _ in range(5)]
    dist.all_gather(gathered, own)
    return difference, hierarchy.nodes, all(torch.equal(each, own) for each in gathered)


def test_gradients_equal_those_of_plain_ddp(tmp_path: Path) -> None:
    for difference, nodes, same in run(5, compare_with_plain_ddp, tmp_path):
        assert nodes == ((0, 3), (1, 2, 4))
        assert difference < 1e-6
        assert same


def rejected_models(_: int) -> list[str]:
    model = DistributedDataParallel(network())
    errors = []
    for what, groups in ((network(), None), (model, [[0], [0]])):
        try:
            holdfast.reduce_by_groups(what, groups)
        except InvalidValue as error:
            errors.append(str(error))
    return errors


def test_models_that_cannot_be_reduced_by_groups_are_rejected(tmp_path: Path) -> None:
    for not_wrapped, duplicate_rank in run(2, rejected_models, tmp_path):
        assert "is not wrapped by DistributedDataParallel" in not_wrapped
        assert "must contain each of the ranks (0, 1) once" in duplicate_rank
