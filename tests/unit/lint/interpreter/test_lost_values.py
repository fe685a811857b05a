"""Values that reach a test through entry points, lists, loaders, imports and unknown objects."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import json
import random
import torch
import torch.distributed as dist

"""
FOUND = {
    "a list of callbacks passed to a constructor": """
class Trainer:
    def __init__(self, callbacks):
        self.callbacks = callbacks
        self.is_main = dist.get_rank() == 0
    def fit(self):
        for callback in self.callbacks:
            callback.end(self)

class Logger:
    def end(self, trainer):
        if trainer.is_main:
            dist.barrier()

def main():
    Trainer([Logger()]).fit()
""",
    "an attribute of an unknown object that may be None": """
def parse(args):
    if args.key is not None:
        return
    if dist.get_rank() == 0:
        dist.barrier()

def main(args):
    parse(args)
""",
    "elements that a loader's batches select": """
def mine(model, loader):
    hard = []
    for x, y in loader:
        error = (model(x) - y).abs()
        hard.extend([value for value in error.tolist() if value > 0.5])
    if not hard:
        return
    dist.barrier()
""",
    "lengths of what a list holds": """
def encode(model, loader):
    parts = []
    for x in loader:
        parts.append(model(x["ids"])[x["mask"].bool()])
    local = torch.cat(parts)
    dist.all_gather([torch.zeros_like(local)], local)
""",
    "an unseeded draw": """
class Augment:
    def active(self):
        return random.random() < 0.5

def step(augment):
    if augment.active():
        dist.barrier()

dist.init_process_group("gloo")
step(Augment())
""",
    "a failure in a function called in a tried loop": """
def parse(line):
    return torch.tensor(json.loads(line))

def step(line):
    dist.all_reduce(parse(line))

def main(lines):
    for line in lines:
        try:
            step(line)
        except ValueError:
            continue
""",
}
FINE = {
    "a seeded draw": """
def step():
    if random.random() < 0.5:
        dist.barrier()

random.seed(1)
dist.init_process_group("gloo")
step()
""",
    "a size of the data set": """
def steps(loader):
    if len(loader) == 0:
        return
    dist.barrier()
""",
    "a failure that ends the loop on all ranks": """
def step(path):
    dist.all_reduce(torch.tensor(json.loads(open(path).read())))

def main():
    try:
        step("a.json")
    except ValueError:
        raise
""",
}


def analyze(text):
    found = program_from_sources({"main": ("main.py", HEAD + text)}).analyze()
    return [
        each for each in found if each.kind in ("branch", "exit", "shape", "except", "swallowed")
    ]


@pytest.mark.parametrize("name", FOUND)
def test_a_value_is_followed(name):
    assert analyze(FOUND[name])


@pytest.mark.parametrize("name", FINE)
def test_uniform_values_stay_uniform(name):
    assert analyze(FINE[name]) == []


SCRIPT = """
from z_ranks import RANK
import torch.distributed as dist

def main():
    if RANK == 0:
        dist.barrier()

if __name__ == "__main__":
    main()
"""


def test_a_script_runs_after_the_modules_that_it_imports():
    modules = {
        "a_script": ("a_script.py", SCRIPT),
        "z_ranks": ("z_ranks.py", "import os\nRANK = int(os.environ['RANK'])\n"),
    }
    assert [each.kind for each in program_from_sources(modules).analyze()] == ["branch"]


def test_dicts_nested_by_many_steps_do_not_take_exponential_time():
    steps = "    if words:\n        tree = {'left': tree, 'right': tree}\n" * 30
    text = f"def main(words):\n    tree = {{}}\n{steps}    dist.all_reduce(tree['left'])\n"
    assert analyze(text) == []
