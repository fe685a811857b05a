"""Sums over the ranks that are divided by what one rank counted."""

import pytest

from tests.unit.lint.programs import program_from_sources

FUNCTION = """\
import torch
import torch.distributed as dist

def evaluate(model, loader):
    hits, total = torch.zeros(1), 0
    for batch, labels in loader:
        hits += (model(batch).argmax(1) == labels).sum()
        total += {counted}
    {reduce}
    return {quotient}
"""
METER = """\
import torch
import torch.distributed as dist

class Meter:
    def __init__(self):
        self.sum, self.count = torch.zeros(1), 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    def synchronize(self):
        {reduce}

    @property
    def mean(self):
        return self.sum / self.count
"""


def function(counted="len(labels)", reduce="dist.all_reduce(hits)", quotient="hits / total"):
    return FUNCTION.format(counted=counted, reduce=reduce, quotient=quotient)


FOUND = [
    function(),
    function(counted="labels.size(0)", quotient="hits.item() / max(total, 1)"),
    function(counted="1"),
    METER.format(reduce="dist.all_reduce(self.sum)"),
]
FINE = [
    function(
        reduce="total = torch.tensor(total)\n    dist.all_reduce(hits)\n    dist.all_reduce(total)"
    ),
    function(quotient="hits / (total * dist.get_world_size())"),
    function(reduce="dist.all_reduce(hits, op=dist.ReduceOp.AVG)"),
    function(reduce="pass"),
    function(reduce="total = reduce_value(total)\n    dist.all_reduce(hits)"),
    function(reduce="rate = hits / total\n    dist.all_reduce(hits)", quotient="hits"),
    METER.format(reduce="dist.all_reduce(self.sum)\n        self.count = reduce_sum(self.count)"),
]


def found(text):
    program = program_from_sources({"main": ("main.py", text)})
    return [each for each in program.analyze() if "counts on this rank" in each.detail]


@pytest.mark.parametrize("text", FOUND)
def test_a_sum_over_the_count_of_one_rank_is_found(text):
    assert len(found(text)) == 1


@pytest.mark.parametrize("text", FINE)
def test_a_sum_over_the_count_of_all_ranks_is_fine(text):
    assert found(text) == []
