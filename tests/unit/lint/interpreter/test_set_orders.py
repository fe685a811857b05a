"""The order of a set in lists and generators that are filled from it."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import torch.distributed as dist

def names_of(state):
    for name in {name for name in state if name.islower()}:
        yield name

def buckets(state, size=4):
    bucket = []
    for name in set(state):
        bucket.append(name)
        if len(bucket) == size:
            yield bucket
            bucket = []
    if bucket:
        yield bucket

class Plan:
    def __init__(self, state):
        self.steps = []
        for name in frozenset(state):
            self.steps.append(name)

def listed(state):
    names = []
    for name in set(state):
        names.append(name)
    return names

def in_order(state):
    names = list(set(state))
    names.sort()
    return names

def sync(state):
"""
SAME_FOR_ALL = [
    "    for name in sorted(names_of(state)):",
    "    names = listed(state)\n    names.sort()\n    for name in names:",
    "    for name in in_order(state):",
    "    plan = Plan(state)\n    plan.steps.sort()\n    for name in plan.steps:",
    "    known = listed(state)\n    for name in [n for n in state if n in known]:",
]
OF_A_SET = [
    "    for name in names_of(state):",
    "    for name in buckets(state):",
    "    for name in Plan(state).steps:",
    "    for name in listed(state):",
]


def kinds(loop):
    source = f"{HEAD}{loop}\n        dist.broadcast(state[name], src=0)\n"
    program = program_from_sources({"main": ("main.py", source)})
    return [divergence.kind for divergence in program.analyze()]


@pytest.mark.parametrize("loop", OF_A_SET)
def test_what_is_filled_in_the_order_of_a_set_has_that_order(loop):
    assert kinds(loop) == ["order"]


@pytest.mark.parametrize("loop", SAME_FOR_ALL)
def test_what_is_sorted_afterwards_has_one_order(loop):
    assert kinds(loop) == []
