"""Iteration counts of loops on each rank: generators, loaders, and ``join``."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

def shares(rows, rank, world):
    mine = rows[rank::world]
    for at in range(0, len(mine), 4):
        yield mine[at : at + 4]

def all_of(rows):
    for at in range(0, len(rows), 4):
        yield from rows[at : at + 4]

rows = torch.ones(10, 4)
model = DistributedDataParallel(torch.nn.Linear(4, 4))
sampler = DistributedSampler(rows)
"""
SLICED = """\
import itertools
rank, size = dist.get_rank(), dist.get_world_size()
whole = len(rows) // size * size
for x in itertools.islice(rows, rank, %s, %s):
    dist.all_reduce(x)
"""
LOCKSTEP = """\
def lockstep(own, spare):
    while True:
        x = next(own, None)
        more = torch.tensor([x is not None])
        dist.all_reduce(more)
        if not more.item():
            return
        if x is None:
            %s
        else:
            yield x

for x in lockstep(shares(rows, dist.get_rank(), dist.get_world_size()), rows[:1]):
    dist.all_reduce(x)
"""
ROUNDS = """\
rank, size = dist.get_rank(), dist.get_world_size()
for x in range(rank, %s, size):
    dist.barrier()
"""
OWN = "shares(rows, dist.get_rank(), dist.get_world_size())"
UNEVEN = [
    f"for x in {OWN}:\n    dist.all_reduce(x)",
    f"with model.join():\n    for x in {OWN}:\n        model(x).sum().backward()\n        dist.barrier()",
    SLICED % (None, "size"),
    SLICED % ("whole", "2 * size"),
    LOCKSTEP % "continue",
    ROUNDS % "len(rows)",
    "size = 64 if dist.get_rank() else 32\nfor x in DataLoader(rows, size, sampler=sampler):\n    dist.all_reduce(x)",
]
EVEN = [
    "for x in all_of(rows):\n    dist.all_reduce(x)",
    f"with model.join():\n    for x in {OWN}:\n        model(x).sum().backward()\ndist.barrier()",
    SLICED % ("whole", "size"),
    LOCKSTEP % "yield spare",
    ROUNDS % "len(rows) - len(rows) % size",
    ROUNDS % "10 * size",
    "for x in DataLoader(rows, 64, sampler=sampler):\n    dist.all_reduce(x)",
]


def loops(text):
    return [
        divergence
        for divergence in program_from_sources({"main": ("main.py", HEAD + text)}).analyze()
        if divergence.kind == "loop"
    ]


@pytest.mark.parametrize("text", UNEVEN)
def test_rank_local_iteration_counts_are_uneven(text):
    (divergence,) = loops(text)
    assert divergence.op.name in ("all_reduce", "barrier")


@pytest.mark.parametrize("text", EVEN)
def test_equal_counts_and_join_are_fine(text):
    assert loops(text) == []


FILTER = """
def run(rows):
    kept = []
    for x in rows:
        if %s:
            %s
        kept.append(x)
    for x in kept:
        dist.all_reduce(x)
"""


@pytest.mark.parametrize("leave", ["continue", "break"])
def test_what_a_rank_leaves_out_makes_its_list_shorter(leave):
    assert len(loops(FILTER % ("torch.isnan(x).any()", leave))) == 1


@pytest.mark.parametrize(
    ("test", "leave"), [("torch.isnan(x).any()", "return"), ("x.shape[0] == 3", "continue")]
)
def test_ranks_that_go_on_or_filter_alike_have_equal_lists(test, leave):
    assert loops(FILTER % (test, leave)) == []
