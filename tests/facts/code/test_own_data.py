"""Ways that lead past a collective by what a rank alone has: its data, its clock; and where collectives hide."""

import pytest

from holdfast.facts.code.programs import program

AUTOGRAD = """\
import os
import torch
import torch.distributed as dist

class Meet(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part):
        {forward}
        return part

    @staticmethod
    def backward(ctx, grad):
        {backward}
        return grad

class Layer(torch.nn.Module):
    @property
    def weight(self):
        return Meet.apply(self.part)

    def forward(self, x):
        return x @ self.weight

layer = Layer()
if os.path.exists("more"):
    layer(torch.ones(3))
"""

WRAPPED = """\
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

class Model(torch.nn.Module):
    def forward(self, x):
        if os.path.exists("stop"):
            dist.all_reduce(x)
        return x

DistributedDataParallel(Model())(torch.ones(3))
"""


def found(text: str) -> list[tuple[str, int]]:
    """The partings of a program, and their lines."""
    return [(each.kind, each.place.line) for each in program({"main": ("main.py", text)}).look()]


@pytest.mark.parametrize(
    ("forward", "backward"), [("dist.all_reduce(part)", "pass"), ("pass", "dist.all_reduce(grad)")]
)
def test_who_applies_a_function_for_autograd_enters_what_it_does(forward: str, backward: str):
    assert found(AUTOGRAD.format(forward=forward, backward=backward)) == [("branch", 26)]


def test_a_function_for_autograd_that_enters_nothing_parts_nobody():
    assert found(AUTOGRAD.format(forward="pass", backward="pass")) == []


def test_a_wrapped_model_runs_its_own_forward():
    assert found(WRAPPED) == [("branch", 9)]


BATCHES = """\
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

def run(data):
    loader = DataLoader(data, sampler=DistributedSampler(data))
    for batch in loader:
        {work}

run([])
"""

CLOCK = """\
import collections
import time
import torch
import torch.distributed as dist

class Queue:
    def __init__(self):
        self.waiting = collections.deque()
        self.late = False

    def drop(self):
        {drop}

    def step(self):
        self.drop()
        if {test}:
            dist.barrier()

Queue().step()
"""


@pytest.mark.parametrize(
    "test",
    [
        "len(batch['boxes']) == 0",
        "batch['boxes'].numel() > 0",
        "batch['boxes'].shape[0] < 1",
        "not len(batch['boxes'])",
        "max(len(each) for each in batch['boxes']) != 0",
        "len(torch.nonzero(batch['labels'])) > 3",
        "(batch['labels'] > 2).nonzero().numel() > 3",
        "torch.cat(batch['boxes']).any()",
        "[each for each in batch['boxes'] if each.sum() > 0]",
    ],
)
def test_whether_a_rank_has_any_of_a_kind_is_its_own_to_say(test: str):
    assert found(BATCHES.format(work=f"if {test}: dist.barrier()")) == [("branch", 8)]


@pytest.mark.parametrize("test", ["len(batch) > 3", "batch['x'].shape[1] == 3", "len(batch['x']) % 4"])
def test_the_size_of_a_batch_is_everybodys(test: str):
    assert found(BATCHES.format(work=f"if {test}: dist.barrier()")) == []


def test_what_was_agreed_on_is_no_ranks_own():
    agreed = "some = torch.tensor(len(batch['x']) > 0); dist.all_reduce(some); some.item() and dist.barrier()"
    assert found(BATCHES.format(work=agreed)) == []


@pytest.mark.parametrize(
    ("drop", "test"),
    [
        ("self.waiting = [each for each in self.waiting if each.due > time.perf_counter()]", "self.waiting"),
        ("self.late = time.monotonic_ns() > 7", "self.late"),
        ("self.waiting = [each for each in self.waiting if each.due > time.time()]", "(list(self.waiting) or None)"),
    ],
)
def test_what_the_clock_of_a_rank_has_decided_stays_its_own(drop: str, test: str):
    assert found(CLOCK.format(drop=drop, test=test)) == [("branch", 17)]


def test_a_time_that_is_kept_decides_nothing():
    assert found(CLOCK.format(drop="self.waiting.append(time.time())", test="self.waiting")) == []
