"""Shares of data whose order each rank draws with its own seed, or with one seed."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import itertools
import random
import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
rows = list(range(100))
"""
#: SEED is the seed of each rank, or one seed.
PROGRAMS = {
    "a sampler": "DistributedSampler(rows, seed=SEED)",
    "a generator of torch": """
def share(n, seed):
    generator = torch.Generator()
    generator.manual_seed(seed)
    order = torch.randperm(n, generator=generator).tolist()
    order = order[: n // world * world]
    return order[rank::world]

share(100, SEED)
""",
    "a generator in an attribute": """
class Feed:
    def __init__(self, files, seed):
        self.rng = random.Random(seed)
        self.files = list(files)
    def epoch(self):
        self.rng.shuffle(self.files)
        for i, file in enumerate(self.files):
            if i % world != rank:
                continue
            yield file

for file in Feed(rows, SEED).epoch():
    print(file)
""",
    "the generator of the process, in a helper": """
def seed_all(seed):
    random.seed(seed)

def listed(rows):
    random.shuffle(rows)
    return rows

seed_all(SEED)
print(list(itertools.islice(listed(rows), rank, None, world)))
""",
    "a permutation of NumPy in pieces": """
np.random.seed(SEED)
print(np.array_split(np.random.permutation(100), world)[rank])
""",
    "a filter": """
order = np.random.default_rng(SEED).permutation(rows)
print([row for i, row in enumerate(order) if i % world == rank])
""",
}
FINE = {
    "a share that is shuffled": "random.seed(3 + rank)\nmine = rows[rank::world]\nrandom.shuffle(mine)",
    "a sampler that does not shuffle": "DistributedSampler(rows, seed=3 + rank, shuffle=False)",
    "collectives in a shuffled loop": """
random.seed(3 + rank)
random.shuffle(rows)
for row in rows:
    dist.all_reduce(torch.tensor(row))
""",
    "a generator with one seed beside the rank's": """
torch.manual_seed(3 + rank)
generator = torch.Generator()
generator.manual_seed(3)
print(torch.randperm(100, generator=generator)[rank::world])
""",
}


def kinds(body: str) -> list[str]:
    program = program_from_sources({"main": ("main.py", f"{HEAD}{body}\ndist.barrier()\n")})
    return [each.kind for each in program.analyze() if each.kind in ("habit-order", "order")]


@pytest.mark.parametrize("body", PROGRAMS.values(), ids=list(PROGRAMS))
def test_a_share_of_an_order_of_the_rank_is_found(body: str) -> None:
    assert kinds(body.replace("SEED", "3 + rank")) == ["habit-order"]
    assert kinds(body.replace("SEED", "3")) == []


@pytest.mark.parametrize("body", FINE.values(), ids=list(FINE))
def test_other_orders_are_fine(body: str) -> None:
    assert kinds(body) == []
