"""Async handles that a method returns only on request, and that its caller drops."""

import pytest

from tests.unit.lint.programs import program_from_sources

WRAPPERS = """\
import torch.distributed as dist
class Nobody:
    def total(self, tensor, blocking=True):
        return None
class Everybody:
    def total(self, tensor, blocking=True):
        work = dist.all_reduce(tensor, async_op=not blocking)
        return work
    def spread(self, tensor, aside=False):
        work = dist.broadcast(tensor, 0, async_op=aside)
        return work if aside else None
def summed(tensor, async_op=True):
    if dist.get_world_size() == 1:
        return None
    return dist.all_reduce(tensor, async_op=async_op)
class Average:
    def __init__(self, comm):
        self.comm = comm
    def run(self, bucket, options):
        %s
        bucket.flat.div_(2)
"""
LOST = [
    "self.comm.total(bucket.flat, blocking=False)",
    "self.comm.total(bucket.flat, False)",
    "work = self.comm.spread(bucket.flat, aside=True)",
    "Everybody().spread(bucket.flat, True)",
    "summed(bucket.flat)",
    "summed(bucket.flat, async_op=True)",
]
KEPT = [
    "self.comm.total(bucket.flat)",
    "self.comm.total(bucket.flat, blocking=True)",
    "self.comm.total(bucket.flat, **options)",
    "self.comm.total(bucket.flat, blocking=options.blocking)",
    "self.comm.total(bucket.flat, blocking=False).wait()",
    "Nobody().total(bucket.flat, blocking=False)",
    "self.comm.spread(bucket.flat)",
    "summed(bucket.flat, async_op=False)",
]


def analyze(text):
    return [
        divergence.location.line
        for divergence in program_from_sources({"main": ("main.py", text)}).analyze()
        if divergence.kind == "handle"
    ]


@pytest.mark.parametrize("text", LOST)
def test_a_requested_and_dropped_handle_is_found(text):
    assert analyze(WRAPPERS % text) == [20]


@pytest.mark.parametrize("text", KEPT)
def test_an_unrequested_or_awaited_handle_is_fine(text):
    assert analyze(WRAPPERS % text) == []


def test_ambiguous_methods_are_ignored():
    other = "class Other:\n    def total(self, tensor, blocking=True):\n        self.queue.put(tensor)\n"
    assert analyze(WRAPPERS % LOST[0] + other) == []


LISTED = """\
import torch.distributed as dist
class Reducer:
    def __init__(self):
        self.works = []
    def start(self, tensor):
        work = dist.all_reduce(tensor, async_op=True)
        self.works.append(work)
    def finish(self):
        %s
"""


def test_a_handle_in_a_list_that_nobody_reads_is_lost():
    assert analyze(LISTED % "pass") == [6]
    assert analyze(LISTED % "[work.wait() for work in self.works]") == []
