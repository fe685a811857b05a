"""Classes that are their own iterators: ranks leave the loop where ``__next__`` ends it."""

import pytest

from tests.unit.lint.programs import program_from_sources

CODE = """\
import torch
import torch.distributed as dist

class Epochs:
    def __init__(self, limit, config=None):
        self.limit, self.current, self.stop, self.config = limit, 0, False, config

    def __iter__(self):
        return self

    def __next__(self):
        if self.stop:
            raise StopIteration
        if self.current >= self.limit:
            raise StopIteration
        self.current += 1
        return self.current

    def update(self, score):
        self.stop = score > 3

class Trainer:
    def __init__(self, limit):
        self.epochs = Epochs(limit)

    def fit(self, score):
        for epoch in self.epochs:
            dist.all_reduce(score)
            %s

Trainer(%s).fit(torch.ones(1))
"""


def kinds(update, limit="9"):
    program = program_from_sources({"main": ("main.py", CODE % (update, limit))})
    return [each.kind for each in program.analyze()]


@pytest.mark.parametrize(
    ("update", "limit"),
    [
        ("if dist.get_rank() == 0: self.epochs.update(score.item())", "9"),
        ("self.epochs.stop = dist.get_rank() == epoch", "9"),
        ("pass", "3 + dist.get_rank()"),
    ],
)
def test_an_iterator_that_ends_on_one_rank_is_found(update, limit):
    assert kinds(update, limit) == ["loop"]


@pytest.mark.parametrize(
    "update",
    [
        "self.epochs.update(score.item())",
        "if dist.get_rank() == 0: print(self.epochs.current)",
    ],
)
def test_an_iterator_that_ends_on_all_ranks_is_fine(update):
    assert kinds(update) == []


STREAM = """\
import itertools
import os
import torch
import torch.distributed as dist

class Stream:
    def __init__(self, files):
        self.files = files

    def __iter__(self):
        for name in self.files:
            yield torch.load(name)

def run(folder, steps):
    rank, world = dist.get_rank(), dist.get_world_size()
    stream = Stream(sorted(os.listdir(folder))[rank::world])
    for step, rows in enumerate(%s):
        dist.all_reduce(rows)

run("data", 8)
"""


@pytest.mark.parametrize(
    ("over", "found"),
    [
        ("stream", ["loop"]),
        ("itertools.islice(stream, rank)", ["loop"]),
        ("itertools.islice(stream, steps)", []),
        ("zip(range(steps), stream)", []),
    ],
)
def test_a_stream_is_read_as_often_as_the_bound_says(over, found):
    program = program_from_sources({"main": ("main.py", STREAM % over)})
    assert [each.kind for each in program.analyze()] == found
