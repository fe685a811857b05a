"""Unequal shares weighted by tokens equal one process, with DDP, FSDP2 and DeepSpeed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import holdfast
from holdfast.core.errors import InvalidValue
from tests.unit.training.collectives.ranks import run
from tests.unit.training.heterogeneous.training import errors, train_cases


def test_loss_weights_in_a_single_process():
    assert holdfast.loss_weight(17) == 1.0
    assert holdfast.loss_weight([3, 1]) == (0.75, 0.25)
    assert holdfast.loss_weight(torch.tensor(5)) == 1.0
    assert holdfast.loss_weight([3, 1], reduction="sum") == (0.25, 0.25)
    assert holdfast.loss_weight([3, 1], divided_by=2) == (1.5, 0.5)
    assert holdfast.loss_weight([0, 0]) == (0.0, 0.0)


@pytest.mark.parametrize("tokens", [-1, float("nan"), [1, float("inf")]])
def test_an_invalid_number_of_tokens_is_rejected(tokens):
    with pytest.raises(InvalidValue, match="negative or not a number"):
        holdfast.loss_weight(tokens)
    with pytest.raises(InvalidValue, match="'median'"):
        holdfast.loss_weight(1, reduction="median")


def weigh_losses(rank):
    total = holdfast.loss_weight([10 * rank, 30])
    try:
        holdfast.loss_weight(-1 if rank else 1)
    except InvalidValue as error:
        return total, str(error)
    return total, ""


@pytest.mark.slow
def test_an_invalid_count_on_one_rank_is_rejected_on_all(tmp_path: Path):
    (first, first_error), (second, second_error) = run(2, weigh_losses, tmp_path)
    assert first == pytest.approx((0.0, 2 * 30 / 70))
    assert second == pytest.approx((2 * 10 / 70, 2 * 30 / 70))
    assert "(on this rank: [1.0])" in first_error
    assert "(on this rank: [-1.0])" in second_error


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.matrix), 3])
def test_weighting_by_tokens_equals_a_single_process(tmp_path: Path, ranks: int):
    cases = [
        (kind, how) for kind in ("ddp", "fsdp2") for how in ("tokens", "sum", "samples", "nothing")
    ]
    for results in run(ranks, train_cases, tmp_path, cases):
        relative_errors = {case: errors(each) for case, each in zip(cases, results, strict=True)}
        for kind in ("ddp", "fsdp2"):
            assert max(relative_errors[kind, "tokens"]) < 1e-6
            assert max(relative_errors[kind, "sum"]) < 1e-6
            assert relative_errors[kind, "samples"][1] > 0.02
            assert relative_errors[kind, "nothing"][1] > 0.1


@pytest.mark.slow
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed: make setup")
def test_deepspeed_at_every_stage(tmp_path: Path):
    cases = [(f"zero{stage}", how) for stage in (1, 2, 3) for how in ("tokens", "nothing")]
    for results in run(2, train_cases, tmp_path, cases, limit_s=110):
        relative_errors = {case: errors(each)[0] for case, each in zip(cases, results, strict=True)}
        for kind, how in cases:
            assert (
                (relative_errors[kind, how] < 1e-6)
                if how == "tokens"
                else (relative_errors[kind, how] > 0.1)
            )
