"""Random splits of a data set: with the seed of each rank, or with one seed."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import torch
import torch.distributed as dist
from accelerate.utils import set_seed
from torch.utils.data import random_split

dist.init_process_group("gloo")
rows, rank = range(100), dist.get_rank()
"""
DATA = """\
class Data:
    def __init__(self, rows, seed):
        self.seed = seed
        torch.manual_seed(self.seed)
        self.train, self.held_out = random_split(rows, [90, 10])
"""
START = """\
def start(seed, rank=None):
    if rank is not None:
        seed += rank
    torch.manual_seed(seed)

def divide(rows, generator=None):
    return random_split(rows, [90, 10], generator)
"""
FOUND = [
    f"{DATA}Data(rows, 7 + rank)",
    f"{START}start(7, rank=rank)\ndivide(rows)",
    "set_seed(7, device_specific=True)\nrandom_split(rows, [90, 10])",
]
FINE = [
    f"{DATA}Data(rows, 7)",
    f"{START}start(7)\ndivide(rows)",
    f"{START}start(7, rank=rank)\nrandom_split(rows, [9, 1], generator=torch.Generator().manual_seed(7))",
    f"{START}start(7, rank=rank)\ntorch.manual_seed(3)\ndivide(rows)",
    "set_seed(7)\nrandom_split(rows, [90, 10])",
    f"{START}start(7, rank=rank)\nrandom_split(rows[rank::8], [90, 10])",
]


def kinds(body):
    program = program_from_sources({"main": ("main.py", f"{HEAD}{body}\ndist.barrier()\n")})
    return [each.kind for each in program.analyze() if each.kind == "habit-order"]


@pytest.mark.parametrize("body", FOUND)
def test_a_split_with_the_seed_of_a_rank_is_found(body):
    assert kinds(body) == ["habit-order"]


@pytest.mark.parametrize("body", FINE)
def test_a_split_with_one_seed_or_of_a_share_is_fine(body):
    assert kinds(body) == []
