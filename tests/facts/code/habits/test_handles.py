"""Handles that a method gives only where it is told to, and that its caller drops."""

import pytest

from holdfast.facts.code.programs import program

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


def found(text):
    return [each.place.line for each in program({"main": ("main.py", text)}).look() if each.kind == "handle"]


@pytest.mark.parametrize("text", LOST)
def test_a_handle_that_is_asked_for_and_dropped_is_found(text):
    assert found(WRAPPERS % text) == [20]


@pytest.mark.parametrize("text", KEPT)
def test_a_handle_that_is_not_asked_for_or_is_waited_for_is_not(text):
    assert found(WRAPPERS % text) == []


def test_of_two_methods_of_one_name_nothing_is_said():
    other = "class Other:\n    def total(self, tensor, blocking=True):\n        self.queue.put(tensor)\n"
    assert found(WRAPPERS % LOST[0] + other) == []
