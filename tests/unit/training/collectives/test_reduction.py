"""Reduction keeps rank order, rounds after each step, and may write to the first part."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from holdfast.training.collectives.reduction import can_fold, fold

SUM, AVG, MAX = dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX


def test_parts_are_reduced_in_order():
    parts = [torch.tensor([value]) for value in (1e8, 1.0, -1e8)]
    out = torch.empty(1)
    fold(parts, SUM, out)
    assert out.item() == 0  # the 1 is rounded away; in another order it remains
    fold([parts[0], parts[2], parts[1]], dist.ReduceOp(SUM), out)
    assert out.item() == 1


@pytest.mark.parametrize("op", [SUM, AVG])
def test_output_may_be_the_first_part(op):
    parts = [torch.arange(5.0) + rank for rank in range(4)]
    fold(parts, op, parts[0])
    assert parts[0].tolist() == [(4 * n + 6) / (4 if op == AVG else 1) for n in range(5)]


def test_nan_is_kept_by_max():
    out = torch.empty(2)
    fold([torch.tensor([1.0, torch.nan]), torch.tensor([torch.nan, 1.0])], MAX, out)
    assert out.isnan().all()


def test_supported_operations_and_dtypes():
    assert can_fold(dist.ReduceOp(SUM), torch.int64)
    assert can_fold(AVG, torch.bfloat16)
    assert not can_fold(AVG, torch.int64)
    assert not can_fold(SUM, torch.complex64)
    assert not can_fold(dist.ReduceOp.BAND, torch.int64)
