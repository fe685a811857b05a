"""A slowed rank gets a smaller share, on all ranks at the same step; a short delay changes nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import holdfast
from holdfast.core.errors import InvalidValue, RanksOutOfSync
from holdfast.training.heterogeneous import rebalancer
from holdfast.training.heterogeneous.batch_shares import shares_of
from holdfast.training.heterogeneous.gpu_kinds import RankSpeed, RankSpeeds
from tests.unit.training.collectives.ranks import run

SAMPLES, BATCH = 1200, 24
SPEEDS = RankSpeeds(tuple(RankSpeed(rank, "", (1, 24), (0.01, 0.24)) for rank in range(3)))


class Clock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def train(rank: int, slow: dict[int, float], last: str = "deal") -> dict[str, Any]:
    """Train 50 steps in simulated time; ``slow[step]`` is the slowdown of rank 1 from that step on."""
    clock = rebalancer.time = Clock()
    sampler = holdfast.HeterogeneousSampler(
        SAMPLES, shares_of([[BATCH // 3]] * 3), rank=rank, last=last
    )
    balance = holdfast.Rebalancer(sampler, SPEEDS, every=4, warm_up=2, device="cpu")
    loader = DataLoader(range(SAMPLES), batch_sampler=sampler, collate_fn=list)
    factor, changes, samples = 1.0, [], []
    for batches in sampler.steps(loader):
        factor = slow.get(sampler.step, factor)
        for batch in batches:
            samples += batch
            with balance.busy():
                clock.now += (
                    0.7 * 0.01 * len(batch) * (factor if rank == 1 else 1)
                )  # 70% of the measured time
        change = balance.step()
        if change is not None:
            changes.append(change)
    return {
        "changes": changes,
        "samples": samples,
        "sizes": [sum(own) for own in sampler.shares.sizes],
    }


@pytest.mark.slow
def test_rank_slows_down_and_recovers(tmp_path: Path):
    ranks = run(3, train, tmp_path, {16: 3.0, 36: 1.0})
    first, second = ranks[0]["changes"]
    assert all(each["changes"] == ranks[0]["changes"] for each in ranks)
    assert [sum(own) for own in first.shares.sizes] == [10, 3, 11]
    assert 16 + 4 < first.step <= 16 + 12
    assert first.slower == pytest.approx({0: 1.0, 1: 3.0, 2: 1.0})
    assert first.gain == pytest.approx(24 / 11, rel=0.01)
    assert "rank 1 takes 3x as long" in str(first)
    assert "10/3/11 instead of 8/8/8" in str(first)
    assert 36 < second.step <= 36 + 12
    assert ranks[0]["sizes"] == [8, 8, 8]
    assert Counter(sample for each in ranks for sample in each["samples"]) == Counter(
        range(SAMPLES)
    )


@pytest.mark.slow
def test_short_delay_changes_nothing(tmp_path: Path):
    assert [
        each["changes"] for each in run(3, train, tmp_path, {16: 3.0, 18: 1.0, 27: 5.0, 31: 1.0})
    ] == [[]] * 3


def use_different_shares(rank: int) -> str:
    """Give rank 2 different shares by mistake; return the error."""
    sampler = holdfast.HeterogeneousSampler(
        SAMPLES, [[9], [8], [7]] if rank == 2 else [[8], [8], [8]], rank=rank
    )
    balance = holdfast.Rebalancer(sampler, SPEEDS, every=1, warm_up=0, device="cpu")
    try:
        for _ in sampler.steps(DataLoader(range(SAMPLES), batch_sampler=sampler, collate_fn=list)):
            with balance.busy():
                pass
            balance.step()
    except RanksOutOfSync as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_rank_with_different_shares_is_reported_on_every_rank(tmp_path: Path):
    [message] = set(run(3, use_different_shares, tmp_path))
    assert "rank 2 continued from another sample, or with other shares, than most" in message


def test_invalid_arguments_are_rejected():
    sampler = holdfast.HeterogeneousSampler(SAMPLES, shares_of([[BATCH // 2]] * 2), rank=0)
    with pytest.raises(InvalidValue, match="speeds of 3 ranks, but shares of 2"):
        holdfast.Rebalancer(sampler, SPEEDS)
    large = holdfast.HeterogeneousSampler(SAMPLES, [[1], [25], [1]], rank=0)
    with pytest.raises(
        InvalidValue, match=r"a micro-batch of 25 on rank 1.*at most 24 samples were measured"
    ):
        holdfast.Rebalancer(large, SPEEDS)
    with pytest.raises(InvalidValue, match="every=0"):
        holdfast.Rebalancer(sampler, SPEEDS, every=0)
