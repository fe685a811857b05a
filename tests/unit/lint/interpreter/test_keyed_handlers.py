"""Handlers that an object keeps in lists, by the name of their event."""

import pytest

from tests.unit.lint.programs import program_from_sources

ENGINE = """\
import collections
import torch
import torch.distributed as dist

class Engine:
    def __init__(self):
        self.handlers = collections.defaultdict(list)

    def on(self, event, handler):
        self.handlers[event].append(handler)

    def fire(self, event):
        for handler in self.handlers[event]:
            handler(self)

    def run(self, rows):
        for row in rows:
            self.fire("iteration")
        self.fire("end")

class Counter:
    def __call__(self, engine):
        print(1)

def total(engine):
    dist.all_reduce(torch.ones(1))

def main(rows):
    engine = Engine()
    engine.on("iteration", Counter())
    engine.on("%s", total)
    %s

main(list(range(10)))
"""
OWN_ROWS = "engine.run(rows[dist.get_rank()::dist.get_world_size()])"
ON_ONE_RANK = "if dist.get_rank() == 0: engine.run(rows)"


@pytest.mark.parametrize(
    ("event", "body", "found"),
    [
        ("iteration", OWN_ROWS, ["loop"]),
        ("end", OWN_ROWS, []),
        ("end", ON_ONE_RANK, ["branch"]),
        ("never", ON_ONE_RANK, []),
    ],
)
def test_a_handler_runs_at_its_own_event_only(event, body, found):
    program = program_from_sources({"main": ("main.py", ENGINE % (event, body))})
    assert [each.kind for each in program.analyze()] == found
