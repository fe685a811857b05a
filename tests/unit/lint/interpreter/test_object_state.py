"""State in objects and dicts that only some ranks change: counters, resumed steps, hooks."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import os
import torch
import torch.distributed as dist

"""
RESUMED_OBJECT = """
class State:
    step = 0

def resume(state, path):
    if GUARD and os.path.exists(path):
        state.step = torch.load(path)["step"]

def main():
    state = State()
    resume(state, "last.pt")
    while state.step < 100:
        dist.all_reduce(torch.ones(1))
        state.step += 1

main()
"""
RESUMED_DICT = """
def resume(path):
    state = {"epoch": 0}
    if GUARD and os.path.exists(path):
        state.update(torch.load(path))
    return state

def main():
    for epoch in range(resume("last.pt")["epoch"], 10):
        dist.all_reduce(torch.ones(1))

main()
"""
HOOKS = """
class Loop:
    def __init__(self):
        self.hooks = {}
    def register(self, name, hook):
        self.hooks.setdefault(name, []).append(hook)
    def fire(self, name):
        for hook in self.hooks[name]:
            hook()

def make_hook():
    shown = GUARD
    def hook():
        if shown:
            dist.barrier()
    return hook

def main():
    loop = Loop()
    loop.register("step", make_hook())
    loop.fire("step")

main()
"""
COUNTER = """
class Counter:
    def __init__(self):
        self.bad = 0
    def update(self, value):
        self.bad += 1
    def __iter__(self):
        return self
    def __next__(self):
        if self.bad > 3:
            raise StopIteration
        return self.bad

class Loop:
    def __init__(self, options):
        self.options = options
    def end(self, value):
        self.options["counter"].update(value)
    def fit(self, counter):
        for _ in counter:
            value = torch.ones(1)
            dist.all_reduce(value)
            if GUARD:
                self.end(value.item())

def main():
    options = {"counter": Counter()}
    Loop(options).fit(options["counter"])

main()
"""
PROGRAMS = {
    "a step of an object": RESUMED_OBJECT,
    "an entry of a dict": RESUMED_DICT,
    "a hook in a list of a dict": HOOKS,
    "a counter of an object in a dict, two calls below the test": COUNTER,
}


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=list(PROGRAMS))
def test_state_that_only_some_ranks_change_is_found_behind_a_test_of_the_rank_only(
    source: str,
) -> None:
    def kinds(guard: str) -> set[str]:
        program = program_from_sources({"m": ("m.py", HEAD + source.replace("GUARD", guard))})
        return {found.kind for found in program.analyze()}

    wrong = {"branch", "exit", "loop"}
    assert kinds("dist.get_rank() == 0") & wrong
    assert not kinds("True") & wrong


UNPACKED = """
import sys
import torch.distributed as dist
from dataclasses import dataclass

@dataclass
class Config:
    resume: bool = False

def options(names):
    return {name: dist.get_rank() == 0 for name in names}

def main(cfg):
    if cfg.resume:
        dist.barrier()

if __name__ == "__main__":
    main(Config(**options(sys.argv)))
"""


def test_unpacked_arguments_may_set_the_fields_of_a_data_class():
    found = program_from_sources({"main": ("main.py", UNPACKED)}).analyze()
    assert [each.kind for each in found] == ["branch"]
