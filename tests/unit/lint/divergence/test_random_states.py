"""States of random generators in checkpoints: one of all ranks, or one per rank."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import pickle
import random
import numpy as np
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
"""
SEEDED = "torch.manual_seed(7 + rank)\n"
HELPERS = """\
def collect():
    return {"torch": torch.get_rng_state(), "python": random.getstate()}

def restore(saved):
    torch.set_rng_state(saved["torch"])
"""
CLASS = """\
class Checkpoint:
    def __init__(self, path):
        self.path, self.is_main = path, dist.get_rank() == 0

    def save(self, model):
        state = {"model": model.state_dict()}
        state["rng"] = torch.cuda.get_rng_state()
        if self.is_main:
            torch.save(state, self.path)  # found

    def load(self):
        state = torch.load(self.path, map_location="cpu")
        torch.cuda.set_rng_state(state["rng"])

def run(model):
    checkpoint = Checkpoint("last.pt")
    checkpoint.load()
    checkpoint.save(model)
"""
FOUND = [
    f"{SEEDED}{CLASS}",
    (
        f"{SEEDED}{HELPERS}if rank == 0:\n    torch.save({{'rng': collect()}}, 'x.pt')  # found\n"
        "restore(torch.load('x.pt')['rng'])"
    ),
    (
        "def seed(number):\n    random.seed(number)\nseed(rank)\n"
        "if rank == 0:\n    pickle.dump(random.getstate(), open('x', 'wb'))  # found\n"
        "random.setstate(pickle.load(open('x', 'rb')))"
    ),
    (
        "np.random.seed(rank)\n"
        "if rank == 0:\n    torch.save({'n': np.random.get_state()}, 'x.pt')  # found\n"
        "np.random.set_state(torch.load('x.pt')['n'])"
    ),
]
FINE = [
    f"torch.manual_seed(7)\n{CLASS}",  # all ranks draw the same anyway
    f"{SEEDED}{HELPERS}torch.save(collect(), f'x{{rank}}.pt')\nrestore(torch.load(f'x{{rank}}.pt'))",
    (
        f"{SEEDED}{HELPERS}states = [None] * dist.get_world_size()\n"
        "dist.all_gather_object(states, collect())\n"
        "if rank == 0:\n    torch.save(states, 'x.pt')\nrestore(torch.load('x.pt')[rank])"
    ),
    f"{SEEDED}{HELPERS}if rank == 0:\n    torch.save(collect(), 'x.pt')\n    restore(torch.load('x.pt'))",
    f"{SEEDED}{HELPERS}saved = collect()\ntorch.rand(2)\nrestore(saved)",  # of this process
    f"{SEEDED}{HELPERS}restore(torch.load('x.pt'))",  # saved elsewhere
]


def found_lines(body):
    text = f"{HEAD}{body}\ndist.barrier()\n"
    program = program_from_sources({"main": ("main.py", text)})
    lines = text.splitlines()
    return [
        "# found" in lines[each.location.line - 1]
        for each in program.analyze()
        if each.kind == "habit-seed"
    ]


@pytest.mark.parametrize("body", FOUND)
def test_a_state_of_one_rank_that_all_restore_is_found(body):
    assert found_lines(body) == [True]


@pytest.mark.parametrize("body", FINE)
def test_a_state_of_each_rank_is_fine(body):
    assert found_lines(body) == []


SAVES = """\
from state import state

def save(folder):
    if {guard}:
        torch.save({saved}, {path})

def load(folder):
    torch.set_rng_state(torch.load(folder + "/rng.pt")["cpu"])
"""


@pytest.mark.parametrize(
    ("guard", "saved", "path", "count"),
    [
        ("dist.get_rank() == 0", "state()", "folder + '/rng.pt'", 1),
        ("dist.get_rank() == 0", "{'cpu': torch.get_rng_state()}", "folder + '/rng.pt'", 1),
        ("dist.get_rank() == 0", "{'step': 1}", "folder + '/rng.pt'", 0),
        ("True", "state()", "f'{folder}/rng_{dist.get_rank()}.pt'", 0),
    ],
)
def test_functions_that_nothing_calls_are_read_too(guard, saved, path, count):
    state = "import torch\ndef state():\n    return {'cpu': torch.get_rng_state()}\n"
    text = f"{HEAD}{SEEDED}{SAVES.format(guard=guard, saved=saved, path=path)}"
    files = {"main": ("main.py", text), "state": ("state.py", state)}
    found = [each for each in program_from_sources(files).analyze() if each.kind == "habit-seed"]
    assert len(found) == count


def test_a_checkpoint_in_another_file_is_found():
    text = f"import torch\nimport torch.distributed as dist\n{CLASS}"
    main = f"from saving import Checkpoint\n{HEAD}{SEEDED}Checkpoint('x').load()\n"
    program = program_from_sources({"main": ("main.py", main), "saving": ("saving.py", text)})
    found = [each for each in program.analyze() if each.kind == "habit-seed"]
    assert [each.location.file for each in found] == ["saving.py"]
