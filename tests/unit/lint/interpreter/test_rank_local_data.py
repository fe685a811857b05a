"""Paths that skip a collective because of a rank's own data or clock, and hidden collectives."""

import pytest

from tests.unit.lint.programs import program_from_sources

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


def analyze(text: str) -> list[tuple[str, int]]:
    """Return the divergences of a program with their lines."""
    return [
        (divergence.kind, divergence.location.line)
        for divergence in program_from_sources({"main": ("main.py", text)}).analyze()
    ]


@pytest.mark.parametrize(
    ("forward", "backward"), [("dist.all_reduce(part)", "pass"), ("pass", "dist.all_reduce(grad)")]
)
def test_applying_an_autograd_function_enters_its_collectives(forward: str, backward: str):
    assert analyze(AUTOGRAD.format(forward=forward, backward=backward)) == [("branch", 26)]


def test_an_autograd_function_without_collectives_is_fine():
    assert analyze(AUTOGRAD.format(forward="pass", backward="pass")) == []


def test_a_wrapped_model_runs_the_programs_forward():
    assert analyze(WRAPPED) == [("branch", 9)]


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
        "batch['x'][batch['y'] > 0].numel() > 2",
        "batch['x'][(batch['y'] > 0) & (batch['y'] < 3)].shape[0] > 2",
        "len(torch.where(batch['y'] > 0)[0]) > 2",
        "batch['y'].nonzero()[:, 0].numel() > 2",
        "int(batch['y'][0]) in [2, 3]",
        "next(iter(loader))['y'].any()",
    ],
)
def test_emptiness_of_a_selection_is_rank_local(test: str):
    assert analyze(BATCHES.format(work=f"if {test}: dist.barrier()")) == [("branch", 8)]


@pytest.mark.parametrize(
    "test", ["len(batch) > 3", "batch['x'].shape[1] == 3", "len(batch['x']) % 4"]
)
def test_batch_size_is_uniform(test: str):
    assert analyze(BATCHES.format(work=f"if {test}: dist.barrier()")) == []


def test_agreed_values_are_not_rank_local():
    agreed = "some = torch.tensor(len(batch['x']) > 0); dist.all_reduce(some); some.item() and dist.barrier()"
    assert analyze(BATCHES.format(work=agreed)) == []


@pytest.mark.parametrize(
    ("drop", "test"),
    [
        (
            "self.waiting = [each for each in self.waiting if each.due > time.perf_counter()]",
            "self.waiting",
        ),
        ("self.late = time.monotonic_ns() > 7", "self.late"),
        (
            "self.waiting = [each for each in self.waiting if each.due > time.time()]",
            "(list(self.waiting) or None)",
        ),
    ],
)
def test_a_clock_test_is_rank_local(drop: str, test: str):
    assert analyze(CLOCK.format(drop=drop, test=test)) == [("branch", 17)]


def test_a_stored_time_is_ignored():
    assert analyze(CLOCK.format(drop="self.waiting.append(time.time())", test="self.waiting")) == []


@pytest.mark.parametrize(
    "count",
    [
        "tasks = {}\n        for each in batch: tasks[each['task']] = each['loss']",
        "tasks = collections.defaultdict(list)\n        for each in batch: tasks[each['task']].append(each['loss'])",
        "tasks = set(batch['task'])",
    ],
)
def test_keys_from_rank_local_data_are_rank_local(count: str):
    work = f"{count}\n        for task in sorted(tasks): dist.barrier()"
    assert analyze("import collections\n" + BATCHES.format(work=work))[0][0] == "loop"


def test_uniform_keys_are_uniform():
    work = "sums = {}\n        for at in range(3): sums[at] = batch['x']\n        for at in sums: dist.barrier()"
    assert analyze(BATCHES.format(work=work)) == []


SEEDED = """\
import torch
import torch.distributed as dist

def draw(seed):
    numbers = torch.Generator().manual_seed(seed)
    for _ in range(8):
        yield torch.randint(0, 9, (4,), generator=numbers)

for batch in draw({seed}):
    if batch[batch > 4].numel() == 0:
        continue
    dist.barrier()
"""


@pytest.mark.parametrize(("seed", "ways"), [("7", []), ("7 + dist.get_rank()", [("exit", 11)])])
def test_draws_from_a_rank_seed_are_rank_local(seed: str, ways: list[tuple[str, int]]):
    assert analyze(SEEDED.format(seed=seed)) == ways


REMEMBERED = """\
import functools
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Subset

@functools.lru_cache
def mean(number):
    value = torch.ones(3)
    dist.all_reduce(value)
    return value

def run(data):
    own = Subset(data, range(dist.get_rank(), 9, 2))
    for batch in DataLoader(own, batch_sampler=own):
        mean({number})

run([])
"""


@pytest.mark.parametrize(("number", "ways"), [("3", []), ("int(batch['n'][0])", ["branch"])])
def test_cache_hits_depend_on_rank_local_data(number: str, ways: list[str]):
    assert [
        kind for kind, line in analyze(REMEMBERED.format(number=number)) if kind != "loop"
    ] == ways


EXPERTS = """\
import torch
import torch.distributed as dist

class Expert(torch.nn.Module):
    def forward(self, x):
        dist.all_reduce(x)
        return x

class Layer(torch.nn.Module):
    def __init__(self):
        self.score = torch.nn.Linear(3, 3)
        self.experts = torch.nn.ModuleList([Expert() for _ in range(4)])

    def forward(self, x):
        picked = self.score(x).argmax(-1)
        for at, expert in enumerate(self.experts):
            rows = (picked == at).nonzero()
            {test}
            x = expert(x[rows])
        return x

def run(data):
    layer = torch.nn.parallel.DistributedDataParallel(Layer())
    sampler = torch.utils.data.DistributedSampler(data)
    for batch in torch.utils.data.DataLoader(data, sampler=sampler):
        layer(batch["x"])

run([])
"""


@pytest.mark.parametrize(
    ("test", "ways"), [("pass", []), ("if not rows.numel(): continue", [("exit", 18)])]
)
def test_expert_routing_is_rank_local(test: str, ways: list[tuple[str, int]]):
    assert analyze(EXPERTS.format(test=test)) == ways


@pytest.mark.parametrize("test", ["sums", "not sums"])
def test_emptiness_does_not_depend_on_content(test: str):
    work = f"sums = []\n        for at in range(3): sums.append(batch['x'].sum())\n        if {test}: dist.barrier()"
    assert analyze(BATCHES.format(work=work)) == []


def test_a_list_filled_by_some_ranks_differs_in_length():
    work = "some = []\n        if batch['x'].any(): some.append(1)\n        if some: dist.barrier()"
    assert analyze(BATCHES.format(work=work)) == [("branch", 10)]
