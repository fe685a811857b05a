"""Files that all ranks write at one path after the process group was created."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import io
import json
import os
import pathlib
import torch
import torch.distributed as dist

def save(args, state, path):
    torch.save(state, os.path.join(args.out, "model.pt"))

@only_main_process
def guarded(state):
    torch.save(state, "model.pt")

"""
INIT = 'dist.init_process_group("gloo")\n'
ALL = {
    "through a call": "save(args, {}, 'x')",
    "a relative path": "with open('results.json', 'w') as file:\n    json.dump({}, file)",
    "a path": "pathlib.Path('results.json').write_text('x')",
    "a name of a path": "def final(out):\n    path = os.path.join(out, 'x.pt')\n    torch.save({}, path)\n"
    "final(os.environ.get('OUT_TMP'))",
    "under a uniform test": "for epoch in range(9):\n    if epoch % 3 == 0:\n        torch.save({}, f'model-{epoch}.pt')",
}
OWN = {
    "a test": "if dist.get_rank() == 0:\n    save(args, {}, 'x')",
    "an unknown test": "if args.is_main:\n    save(args, {}, 'x')",
    "an unknown decorator": "guarded({})",
    "the rank in the path": "torch.save({}, f'model-{dist.get_rank()}.pt')",
    "the process in the path's name": "def states(process_index):\n    name = f'rng_{process_index}.pt'\n"
    "    path = args.out.joinpath(name)\n    torch.save({}, path)\nstates(settings.index)",
    "an attribute with the rank in it": """
class Writer:
    def __init__(self, folder):
        self.path = os.path.join(folder, f"{dist.get_rank()}.pt")
        self.other = folder + "/" + str(dist.get_rank())
    def save(self):
        torch.save({}, self.path)
        torch.save({}, self.other)
Writer("out").save()""",
    "an attribute passed in with the rank": """
class Writer:
    def __init__(self, path):
        self.path = path
    def save(self):
        torch.save({}, self.path)
Writer(f"{dist.get_rank()}.pt").save()""",
    "a passed path": "def final(path):\n    torch.save({}, path)\nfinal(made())",
    "a path that may contain the rank": "torch.save({}, paths.by_rank('model.pt'))",
    "a buffer": "buffer = io.BytesIO()\ntorch.save({}, buffer)",
    "extended": "with open('log.txt', 'a') as file:\n    file.write('x')",
    "read": "open('model.pt').read()",
}


def analyze(text):
    return [
        divergence.location.line
        for divergence in program_from_sources({"main": ("main.py", HEAD + text)}).analyze()
        if divergence.kind == "written"
    ]


@pytest.mark.parametrize("name", ALL)
def test_a_file_that_all_ranks_write_is_found(name):
    assert len(analyze(INIT + ALL[name])) == 1


@pytest.mark.parametrize("name", OWN)
def test_a_file_of_one_rank_or_per_rank_is_fine(name):
    assert analyze(INIT + OWN[name]) == []


def test_files_before_group_creation_are_fine():
    assert analyze(ALL["a relative path"] + "\n" + INIT) == []
    assert analyze(ALL["a relative path"]) == []
