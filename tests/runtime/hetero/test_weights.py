"""Unequal shares, weighted by tokens: what one process gets from the global batch, with DDP, FSDP2 and DeepSpeed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import holdfast
from holdfast.errors import BadValue
from tests.runtime.comm.ranks import run
from tests.runtime.hetero.training import errors, several


def test_alone_a_loss_counts_by_its_tokens():
    assert holdfast.loss_weight(17) == 1.0
    assert holdfast.loss_weight([3, 1]) == (0.75, 0.25)
    assert holdfast.loss_weight(torch.tensor(5)) == 1.0
    assert holdfast.loss_weight([3, 1], reduction="sum") == (0.25, 0.25)
    assert holdfast.loss_weight([3, 1], divided_by=2) == (1.5, 0.5)
    assert holdfast.loss_weight([0, 0]) == (0.0, 0.0)


@pytest.mark.parametrize("tokens", [-1, float("nan"), [1, float("inf")]])
def test_a_number_of_tokens_that_is_none_is_refused(tokens):
    with pytest.raises(BadValue, match="negative or no number"):
        holdfast.loss_weight(tokens)
    with pytest.raises(BadValue, match="'median'"):
        holdfast.loss_weight(1, reduction="median")


def weighs(rank):
    total = holdfast.loss_weight([10 * rank, 30])
    try:
        holdfast.loss_weight(-1 if rank else 1)
    except BadValue as error:
        return total, str(error)
    return total, ""


@pytest.mark.slow
def test_what_one_rank_cannot_count_all_ranks_refuse(tmp_path: Path):
    (first, told), (second, other) = run(2, weighs, tmp_path)
    assert first == pytest.approx((0.0, 2 * 30 / 70))
    assert second == pytest.approx((2 * 10 / 70, 2 * 30 / 70))
    assert "(here: [1.0])" in told
    assert "(here: [-1.0])" in other


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.matrix), 3])
def test_by_tokens_it_is_one_process_and_otherwise_it_is_not(tmp_path: Path, ranks: int):
    cases = [(kind, how) for kind in ("ddp", "fsdp2") for how in ("tokens", "sum", "samples", "nothing")]
    for given in run(ranks, several, tmp_path, cases):
        found = {case: errors(each) for case, each in zip(cases, given, strict=True)}
        for kind in ("ddp", "fsdp2"):
            assert max(found[kind, "tokens"]) < 1e-6
            assert max(found[kind, "sum"]) < 1e-6
            assert found[kind, "samples"][1] > 0.02
            assert found[kind, "nothing"][1] > 0.1


@pytest.mark.slow
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed: make setup")
def test_deepspeed_too_at_every_stage(tmp_path: Path):
    cases = [(f"zero{stage}", how) for stage in (1, 2, 3) for how in ("tokens", "nothing")]
    for given in run(2, several, tmp_path, cases, limit_s=110):
        found = {case: errors(each)[0] for case, each in zip(cases, given, strict=True)}
        for kind, how in cases:
            assert (found[kind, how] < 1e-6) if how == "tokens" else (found[kind, how] > 0.1)
