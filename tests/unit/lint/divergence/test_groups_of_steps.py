"""Groups that every step of a training loop creates."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = "import torch.distributed as dist\nfrom groups import average, cached\n\n"
GROUPS = """\
import torch.distributed as dist

_GROUPS = {}

def average(x):
    group = dist.new_group([0, 1])
    dist.all_reduce(x, group=group)

def cached(ranks):
    if ranks not in _GROUPS:
        _GROUPS[ranks] = dist.new_group(ranks)
    return _GROUPS[ranks]
"""
WRONG = {
    "in a helper": """\
def train(model, loader):
    for batch in loader:
        loss = model(batch)
        loss.backward()
        average(loss)
""",
    "in the loop": """\
class Trainer:
    def step(self, batch):
        self.model(batch).backward()
        dist.barrier(group=dist.new_group(self.ranks))

    def run(self, epochs, loader):
        for epoch in range(epochs):
            for batch in loader:
                self.step(batch)
""",
}
FINE = {
    "before the loop": """\
def train(model, loader):
    group = dist.new_group([0, 1])
    for batch in loader:
        loss = model(batch)
        loss.backward()
        dist.all_reduce(loss, group=group)
""",
    "on first use": """\
def train(model, loader):
    for batch in loader:
        loss = model(batch)
        loss.backward()
        dist.all_reduce(loss, group=cached((0, 1)))
""",
    "one for each host": """\
def hosts(size):
    for first in range(0, dist.get_world_size(), size):
        dist.new_group(list(range(first, first + size)))
""",
}


def found(text):
    sources = {"main": ("main.py", HEAD + text), "groups": ("groups.py", GROUPS)}
    analyzed = program_from_sources(sources).analyze()
    return [each.detail for each in analyzed if each.kind == "habit-group"]


@pytest.mark.parametrize("name", WRONG)
def test_groups_of_each_step_are_found(name):
    messages = found(WRONG[name])
    assert messages
    assert all("every step creates" in message for message in messages)


@pytest.mark.parametrize("name", FINE)
def test_groups_that_are_created_once_are_fine(name):
    assert found(FINE[name]) == []
