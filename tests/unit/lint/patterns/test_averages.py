"""Means of per-rank means: only with differing counts divided by the number of ranks."""

import pytest

from tests.unit.lint.programs import program_from_sources

FUNCTION = """\
import torch
import torch.distributed as dist

def sums(losses, mask):
    return torch.sum(losses * mask), mask.sum()

def metric(losses, labels, mask, batch, total=0, kept=0):
"""
FOUND = [
    (
        "    loss, n = sums(losses, mask)\n    total += loss / n.clamp(min=1)\n    average = total / 20\n"
        "    dist.all_reduce(average)\n    return average / dist.get_world_size()"
    ),
    (
        "    loss, n = sums(losses, mask)\n    mean = loss / n\n    scaled = mean * 100\n"
        "    dist.all_reduce(scaled, op=dist.ReduceOp.AVG)"
    ),
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
    # sums and counts of a function, reduced together
    (
        "    loss, n = sums(losses, mask)\n    both = torch.stack([loss, n])\n    dist.all_reduce(both)\n"
        "    return both[0] / both[1] / world_size"
    ),
    # the mean of the sums
    (
        "    loss, n = sums(losses, mask)\n    total += loss / batch\n    average = total / 20\n"
        "    dist.all_reduce(average)\n    return average / world_size"
    ),
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


def analyze(text):
    return [
        divergence.location.line
        for divergence in program_from_sources({"main": ("main.py", FUNCTION + text)}).analyze()
        if divergence.kind == "mean"
    ]


@pytest.mark.parametrize("text", FOUND)
def test_a_mean_over_a_local_count_is_found_at_the_reduction(text):
    (line,) = analyze(text)
    assert "all_reduce" in (FUNCTION + text).split("\n")[line - 1]


@pytest.mark.parametrize("text", FINE)
def test_equal_counts_and_sums_are_fine(text):
    assert analyze(text) == []


METRICS = """\
import torch
import torch.distributed as dist

class Accuracy:
    def __init__(self):
        self.hits, self.total = torch.zeros(1), torch.zeros(1)

    def update(self, hits, labels):
        mask = labels != -100
        self.hits += hits[mask].sum()
        self.total += mask.sum()

    def value(self):%s
        return self.hits / self.total

def masked(losses, mask):
    return (losses * mask).sum() / mask.sum()

def average(tensor):
    dist.all_reduce(tensor)
    return tensor / dist.get_world_size()
"""
SUMMED = "\n        dist.all_reduce(self.hits)\n        dist.all_reduce(self.total)"
CALLERS = [
    (
        "import metrics\ndef score(hits, labels):\n    metric = metrics.Accuracy()\n    metric.update(hits, labels)\n"
        "    return metrics.average(metric.value())"
    ),
    (
        "from metrics import Accuracy, average\nclass Fit:\n    def __init__(self):\n        self.metric = Accuracy()\n"
        "    def end(self):\n        mean = self.metric.value()\n        return average(mean)"
    ),
    (
        "import torch.distributed as dist\nfrom metrics import masked\ndef evaluate(losses, mask):\n"
        "    mean = masked(losses, mask)\n    dist.all_reduce(mean, op=dist.ReduceOp.AVG)"
    ),
]


def across(metrics, caller):
    files = {"metrics": ("metrics.py", metrics), "main": ("main.py", caller)}
    return [
        divergence
        for divergence in program_from_sources(files).analyze()
        if divergence.kind == "mean"
    ]


@pytest.mark.parametrize("caller", CALLERS)
def test_a_mean_from_another_function_is_found(caller):
    (divergence,) = across(METRICS % "", caller)
    assert (divergence.location.file, divergence.guard.file) == ("main.py", "metrics.py")


@pytest.mark.parametrize("caller", CALLERS[:2])
def test_a_metric_that_sums_its_counts_over_ranks_is_fine(caller):
    assert across(METRICS % SUMMED, caller) == []


def test_an_averaged_sum_is_fine():
    assert (
        across(
            METRICS % "",
            "from metrics import average\ndef f(loss):\n    return average(loss.sum())",
        )
        == []
    )
