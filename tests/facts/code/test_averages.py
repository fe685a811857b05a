"""Means of ranks' own means: only of counts that differ, and only where the ranks' number divides them."""

import pytest

from holdfast.facts.code.programs import program

FUNCTION = """\
import torch
import torch.distributed as dist

def metric(losses, labels, mask, batch, total=0, kept=0):
"""
FOUND = [
    (
        "    n = (labels != -100).sum()\n    mean = losses.sum() / n.clamp(min=1)\n    dist.all_reduce(mean)\n"
        "    mean /= dist.get_world_size()"
    ),
    (
        "    kept += mask.sum().item()\n    total += losses.sum().item()\n    mean = torch.tensor(total / kept)\n"
        "    dist.all_reduce(mean, op=dist.ReduceOp.AVG)"
    ),
    (
        "    n = torch.sum(mask)\n    mean = losses.sum() / n\n    b = torch.tensor([mean])\n    dist.all_reduce(b)\n"
        "    return b / world_size"
    ),
]
FINE = [
    # the count is reduced too
    (
        "    n = mask.sum()\n    mean = losses.sum() / n\n    dist.all_reduce(n)\n    dist.all_reduce(mean)\n"
        "    return mean / world_size"
    ),
    # as many for each rank
    "    n = labels.size(0)\n    mean = losses.sum() / n\n    dist.all_reduce(mean)\n    return mean / world_size",
    # a sum over ranks, and no mean
    "    n = mask.sum()\n    mean = losses.sum() / n\n    dist.all_reduce(mean)\n    return mean",
    # another value
    "    n = mask.sum()\n    mean = losses.sum() / n\n    dist.all_reduce(losses)\n    return losses / world_size",
]


def found(text):
    return [each.place.line for each in program({"main": ("main.py", FUNCTION + text)}).look() if each.kind == "mean"]


@pytest.mark.parametrize("text", FOUND)
def test_a_mean_over_a_ranks_own_count_is_found_where_it_is_reduced(text):
    (line,) = found(text)
    assert "all_reduce" in (FUNCTION + text).split("\n")[line - 1]


@pytest.mark.parametrize("text", FINE)
def test_equal_counts_and_sums_are_fine(text):
    assert found(text) == []
