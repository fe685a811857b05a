"""How many elements and which keys each rank has: shares, clamps, partitions and padding."""

from tests.unit.lint.interpreter.forms.heap import with_part

_HEAD = """\
import itertools
import math

import elsewhere
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader, Subset

rank, world = dist.get_rank(), dist.get_world_size()
"""


def _pair(text: str, bad: str, good: str) -> tuple[str, str]:
    """Return the program with the bad part and with the good part in place of its line LINE."""
    return _HEAD + with_part(text, bad), _HEAD + with_part(text, good)


_LOOP = """
def run(rows):
    LINE
        dist.all_reduce(row)


run(torch.ones(10, 4))
"""
_KEYS = """
def average(batch, names):
    stats = {}
    LINE
    for name in sorted(stats):  # found
        dist.all_reduce(stats[name])


average([], [])
"""

FORMS: dict[str, tuple[str, str]] = {
    "a clamped share": _pair(
        """
def run(rows, n):
    share = 4
    start = rank * share
    LINE
        dist.all_reduce(rows[at])


run(torch.ones(10, 4), 10)
""",
        "for at in range(start, min(start + share, n)):  # found",
        "for at in range(start, start + share):",
    ),
    "a rounded share": _pair(
        """
def run(files):
    LINE
    mine = files[rank * share : (rank + 1) * share]
    for file in mine:  # found
        dist.all_reduce(torch.load(file))


run(["a", "b", "c"])
""",
        "share = math.ceil(len(files) / world)",
        "share = len(files) // world",
    ),
    "a share rounded up by hand": _pair(
        """
def run(files):
    LINE
    for file in files[rank * share : rank * share + share]:  # found
        dist.all_reduce(torch.load(file))


run(["a", "b", "c"])
""",
        "share = (len(files) + world - 1) // world",
        "share = len(files) // world",
    ),
    "a share with the rest": _pair(
        """
def run(rows):
    share = len(rows) // world
    LINE
    for at in range(share):  # found
        dist.all_reduce(rows[at])


run(torch.ones(10, 4))
""",
        "if rank < len(rows) % world:\n    share += 1",
        "print(len(rows) % world)",
    ),
    "the rest for the last rank": _pair(
        """
def run(rows):
    share = len(rows) // world
    start = rank * share
    LINE
    for row in rows[start:stop]:  # found
        dist.all_reduce(row)


run(torch.ones(10, 4))
""",
        "stop = len(rows) if rank == world - 1 else start + share",
        "stop = start + share",
    ),
    "every n-th row": _pair(
        _LOOP,
        "for row in rows[rank::world]:  # found",
        "for row in rows[: len(rows) // world * world][rank::world]:",
    ),
    "every n-th row of padded rows": _pair(
        """
def run(rows):
    order = list(range(len(rows)))
    LINE
    for at in order[rank::world]:  # found
        dist.all_reduce(rows[at])


run(torch.ones(10, 4))
""",
        "print(len(order))",
        "order += order[: (-len(order)) % world]",
    ),
    "every n-th index of a range": _pair(
        """
def run(rows, steps):
    LINE
        dist.all_reduce(rows[at])


run(torch.ones(10, 4), 3)
""",
        "for at in range(rank, len(rows), world):  # found",
        "for at in range(rank, rank + steps * world, world):",
    ),
    "every n-th of an iterator": _pair(
        _LOOP,
        "for row in itertools.islice(rows, rank, None, world):  # found",
        "for row in itertools.islice(rows, 4):",
    ),
    "rows that are skipped": _pair(
        """
def run(rows):
    for at, row in enumerate(rows):
        LINE
        dist.all_reduce(row)


run(torch.ones(10, 4))
""",
        "if at % world != rank:\n    continue  # found",
        "if at % world == 3:\n    continue",
    ),
    "split parts": _pair(
        _LOOP,
        "for row in np.array_split(rows, world)[rank]:  # found",
        "for row in rows.reshape(world, -1, 4)[rank]:",
    ),
    "a subset in a loader": _pair(
        """
def run(data):
    LINE
    for batch in DataLoader(part, 4):  # found
        dist.all_reduce(batch)


run(torch.ones(10, 4))
""",
        "part = Subset(data, list(range(rank, len(data), world)))",
        "part = Subset(data, list(range(rank * (len(data) // world), (rank + 1) * (len(data) // world))))",
    ),
    "a dataset with its own share": _pair(
        """
class Rows(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows
        LINE

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, at):
        return self.rows[at]


def run(rows):
    for row in DataLoader(Rows(rows), 4):  # found
        dist.all_reduce(row)


run(torch.ones(10, 4))
""",
        "self.rows = self.rows[rank::world]",
        "share = len(rows) // world\nself.rows = self.rows[rank * share : (rank + 1) * share]",
    ),
    "a sampler of its own": _pair(
        """
class Sampler(torch.utils.data.Sampler):
    def __init__(self, data):
        self.data = data
        self.num_samples = math.ceil(len(data) / world)
        self.total_size = self.num_samples * world

    def __iter__(self):
        indices = list(range(len(self.data)))
        LINE
        return iter(indices[rank : self.total_size : world])


def run(data):
    for row in DataLoader(data, 1, sampler=Sampler(data)):  # found
        dist.all_reduce(row)


run(torch.ones(10, 4))
""",
        "print(len(indices))",
        "indices += indices[: self.total_size - len(indices)]",
    ),
    "an iterator that ends": _pair(
        """
def run(rows):
    LINE
    while True:
        row = next(source, None)
        if row is None:
            break  # found
        dist.all_reduce(row)


run(torch.ones(10, 4))
""",
        "source = iter(rows[rank::world])",
        "source = iter(rows)",
    ),
    "an iterator that ends, in the test": _pair(
        """
def run(rows):
    LINE
    while (row := next(source, None)) is not None:  # found
        dist.all_reduce(row)


run(torch.ones(10, 4))
""",
        "source = iter(rows[rank::world])",
        "source = iter(rows[: len(rows) // 2])",
    ),
    "an agreed number of rounds": _pair(
        """
def run(rows):
    mine = rows[rank::world]
    rounds = torch.tensor([len(mine)])
    LINE
    for at in range(int(rounds)):  # found
        dist.all_reduce(mine[at % len(mine)])


run(torch.ones(10, 4))
""",
        "print(rounds)",
        "dist.all_reduce(rounds, op=dist.ReduceOp.MIN)",
    ),
    "a gathered number of rounds": _pair(
        """
def run(rows):
    mine = list(rows[rank::world])
    counts = [None] * world
    LINE
    for at in range(rounds):  # found
        dist.all_reduce(mine[at])


run(torch.ones(10, 4))
""",
        "rounds = len(mine)",
        "dist.all_gather_object(counts, len(mine))\nrounds = min(counts)",
    ),
    "pairs with a fixed number of steps": _pair(
        """
def run(rows, steps):
    mine = rows[rank::world]
    LINE
        dist.all_reduce(row)


run(torch.ones(10, 4), 2)
""",
        "for at, row in zip(itertools.count(), mine):  # found",
        "for at, row in zip(range(steps), mine):",
    ),
    "padding to an agreed width": _pair(
        """
def collect(values):
    kept = values[torch.isfinite(values)]
    width = torch.tensor([kept.numel()])
    dist.all_reduce(width, op=dist.ReduceOp.MAX)
    LINE
    parts = [torch.empty_like(kept) for _ in range(world)]
    dist.all_gather(parts, kept)  # found
    return parts


collect(elsewhere.values())
""",
        "print(width)",
        "kept = F.pad(kept, (0, int(width) - kept.numel()))",
    ),
    "padding by joining": _pair(
        """
def collect(values):
    kept = values[torch.isfinite(values)]
    sizes = [None] * world
    dist.all_gather_object(sizes, kept.numel())
    width = max(sizes)
    LINE
    parts = [torch.empty_like(kept) for _ in range(world)]
    dist.all_gather(parts, kept)  # found
    return parts


collect(elsewhere.values())
""",
        "print(width)",
        "kept = torch.cat([kept, kept.new_zeros(width - kept.numel())])",
    ),
    "padding to the longest, whatever the width": _pair(
        """
def collect(values, rank, world):
    kept = values[rank::world]
    sizes = [None] * world
    dist.all_gather_object(sizes, len(kept))
    longest = max(sizes)
    LINE
    block[: len(kept)] = kept
    parts = [torch.empty_like(block) for _ in range(world)]
    dist.all_gather(parts, block)  # found
    return parts


collect(elsewhere.values(), dist.get_rank(), dist.get_world_size())
""",
        "block = kept.new_zeros((len(kept), *kept.shape[1:]))",
        "block = kept.new_zeros((longest, *kept.shape[1:]))",
    ),
    "padding by copying": _pair(
        """
def collect(values):
    kept = values[torch.isfinite(values)]
    sizes = [torch.zeros(1, dtype=torch.long) for _ in range(world)]
    dist.all_gather(sizes, torch.tensor([kept.numel()]))
    width = max(int(size) for size in sizes)
    LINE
    parts = [torch.empty_like(block) for _ in range(world)]
    dist.all_gather(parts, block)  # found
    return parts


collect(elsewhere.values())
""",
        "block = kept.clone()",
        "block = torch.zeros(width)\nblock[: kept.numel()] = kept",
    ),
    "objects of all ranks": _pair(
        """
def run(rows):
    mine = list(rows[rank::world])
    every = [None] * world
    dist.all_gather_object(every, mine)
    LINE
        dist.all_reduce(row)


run(torch.ones(10, 4))
""",
        "for row in mine:  # found",
        "for row in itertools.chain(*every):",
    ),
    "keys of the own batch": _pair(
        _KEYS,
        "for name, value in batch[rank::world]:\n    stats.setdefault(name, torch.zeros(1)).add_(value)",
        "for name in names:\n    stats.setdefault(name, torch.zeros(1))",
    ),
    "keys that one rank adds": _pair(
        _KEYS,
        'if rank == 0:\n    stats.update({"rate": torch.ones(1)})',
        'stats.update({"rate": torch.ones(1)})',
    ),
    "keys with the rank": _pair(
        """
def average(names):
    stats = {name: torch.zeros(1) for name in names}
    LINE
    for name in stats:  # found
        dist.all_reduce(stats[name])  # found


average([])
""",
        'if rank == 0:\n    stats["seconds"] = torch.ones(1)',
        'stats["seconds"] = torch.ones(1) * rank',
    ),
    "keys that one rank removes": _pair(
        _KEYS,
        'stats.update(loss=torch.ones(1), seconds=torch.ones(1))\nif rank != 0:\n    stats.pop("seconds")',
        'stats.update(loss=torch.ones(1), seconds=torch.ones(1))\nstats.pop("seconds")',
    ),
    "keys that one rank deletes": _pair(
        _KEYS,
        'stats.update(loss=torch.ones(1), seconds=torch.ones(1))\nif rank != 0:\n    del stats["seconds"]',
        'stats.update(loss=torch.ones(1), seconds=torch.ones(1))\ndel stats["seconds"]',
    ),
    "keys of all ranks": _pair(
        """
def average(rows):
    stats = {}
    for name, value in rows[rank::world]:
        stats[name] = torch.ones(1) * value
    names = [None] * world
    LINE
        dist.all_reduce(stats.get(name, torch.zeros(1)))


average([])
""",
        "for name in stats:  # found",
        "dist.all_gather_object(names, sorted(stats))\nfor name in sorted(set(itertools.chain(*names))):",
    ),
    "keys of a counter": _pair(
        """
import collections


def average(rows):
    counts = collections.Counter(rows[rank::world])
    LINE
        dist.all_reduce(torch.tensor([counts[name]]))


average([])
""",
        "for name in counts:  # found",
        'for name in ("good", "bad"):',
    ),
    "kept rows": _pair(
        """
def run(rows):
    mine = rows[rank::world][:8]
    kept = [row for row in mine if row.sum() > rank]
    LINE
        dist.all_reduce(torch.ones(1))


run(torch.ones(10, 4))
""",
        "for row in kept:  # found",
        "for row in mine:",
    ),
    "own batches": _pair(
        """
class Batches:
    def __init__(self, rows, size):
        self.rows, self.size = rows, size

    def __iter__(self):
        LINE
        for at in range(0, len(mine), self.size):
            yield mine[at : at + self.size]


for batch in Batches(torch.ones(10, 4), 2):  # found
    dist.all_reduce(batch)
""",
        "mine = self.rows[rank::world]",
        "share = len(self.rows) // world\nmine = self.rows[rank * share : (rank + 1) * share]",
    ),
    "a loop over the number of own batches": _pair(
        """
def run(rows, size):
    LINE
    for at in range(len(mine) // size):  # found
        dist.all_reduce(mine[at])


run(torch.ones(10, 4), 2)
""",
        "mine = rows[rank::world]",
        "mine = rows.view(world, -1)[rank]",
    ),
}
