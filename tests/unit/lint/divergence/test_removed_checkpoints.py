"""Old checkpoints that all ranks remove, found in a folder or counted by the program."""

import pytest

from tests.unit.lint.programs import program_from_sources

PROGRAM = """\
import os
import shutil
from pathlib import Path
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

class Manager:
    def __init__(self, root, keep):
        self.root, self.keep, self.steps = Path(root), keep, []

    def path(self, step):
        return self.root / f"step_{{step}}"

    def save(self, model, step):
        dcp.save({{"model": model.state_dict()}}, checkpoint_id=self.path(step))
        self.steps.append(step)

    def found(self):
        return sorted(os.path.join(self.root, name) for name in os.listdir(self.root))

    def clean(self):
        {clean}

def main(model):
    dist.init_process_group("gloo")
    manager = Manager("out", 2)
    for step in range(100):
        manager.save(model, step)
        dist.barrier()
        manager.clean()

main(torch.nn.Linear(2, 2))
"""
COUNTED = """while len(self.steps) > self.keep:
            step = self.steps.pop(0)
            shutil.rmtree({path})"""
LISTED = """for path in self.found()[: -self.keep]:
            shutil.rmtree(path{more})"""
FOUND = [COUNTED.format(path="self.path(step)"), LISTED.format(more="")]
FINE = [
    COUNTED.format(path='self.root / f"rank_{dist.get_rank()}"'),
    COUNTED.format(path="self.path(step), ignore_errors=True"),
    LISTED.format(more=", ignore_errors=True"),
    "if dist.get_rank() == 0:\n            " + LISTED.format(more="").replace("\n", "\n    "),
]


def removals(clean):
    text = PROGRAM.format(clean=clean)
    program = program_from_sources({"main": ("main.py", text)})
    return [each.kind for each in program.analyze() if each.kind == "removed"]


@pytest.mark.parametrize("clean", FOUND)
def test_a_checkpoint_that_all_ranks_remove_is_found(clean):
    assert removals(clean) == ["removed"]


@pytest.mark.parametrize("clean", FINE)
def test_a_checkpoint_that_one_rank_removes_is_fine(clean):
    assert removals(clean) == []
