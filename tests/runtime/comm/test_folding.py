"""Folding: in the order given, rounded after each step, into the first piece too."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from holdfast.runtime.comm.folding import fold, folds

SUM, AVG, MAX = dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX


def test_the_order_is_that_of_the_pieces():
    pieces = [torch.tensor([value]) for value in (1e8, 1.0, -1e8)]
    out = torch.empty(1)
    fold(pieces, SUM, out)
    assert out.item() == 0  # the 1 is rounded away; in another order it is not
    fold([pieces[0], pieces[2], pieces[1]], dist.ReduceOp(SUM), out)
    assert out.item() == 1


@pytest.mark.parametrize("op", [SUM, AVG])
def test_the_first_piece_may_be_where_the_result_goes(op):
    pieces = [torch.arange(5.0) + rank for rank in range(4)]
    fold(pieces, op, pieces[0])
    assert pieces[0].tolist() == [(4 * n + 6) / (4 if op == AVG else 1) for n in range(5)]


def test_what_is_no_number_stays_none():
    out = torch.empty(2)
    fold([torch.tensor([1.0, torch.nan]), torch.tensor([torch.nan, 1.0])], MAX, out)
    assert out.isnan().all()


def test_not_everything_is_folded():
    assert folds(dist.ReduceOp(SUM), torch.int64)
    assert folds(AVG, torch.bfloat16)
    assert not folds(AVG, torch.int64)
    assert not folds(SUM, torch.complex64)
    assert not folds(dist.ReduceOp.BAND, torch.int64)
