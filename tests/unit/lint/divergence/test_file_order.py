"""Files that ranks access at the same time, followed over functions by their path."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import glob
import json
import os
import shutil
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()

def part(folder, index):
    return os.path.join(folder, f"part_{index}.json")

def write_part(folder):
    with open(part(folder, rank), "w") as file:
        json.dump(rank, file)

def merge(folder, count):
    return [open(part(folder, i)).read() for i in range(count)]

def build(path):
    torch.save({}, path)

def prepare(folder):
    if rank == 0:
        os.makedirs(folder, exist_ok=True)
    return folder

"""
RACES = {
    "merged": "write_part('out')\nif rank == 0:\n    merge('out', 4)",
    "merged by all": "write_part('out')\nmerge('out', 4)",
    "merged by listing": "write_part('out')\nif rank == 0:\n    glob.glob(os.path.join('out', '*'))",
    "file": "if rank == 0:\n    build(CACHE)\ntorch.load(CACHE)\nCACHE = 'a/tokens.pt'",
    "file, tested": "if rank == 0:\n    build('a/x.pt')\nif os.path.exists('a/x.pt'):\n    print()",
    "file, removed": "if rank == 0:\n    os.remove('a/x.pt')\ntorch.load('a/x.pt')",
    "unready": "folder = prepare(args.out)\ntorch.save({}, f'{folder}/shard_{rank}.pt')",
    "folder": "merge('out/parts', 2)\nif rank == 0:\n    shutil.rmtree('out/parts')",
    "removed": "shutil.rmtree(args.log_dir)",
    "created": "os.makedirs(args.log_dir)",
    "clocked": """
folder = os.path.join(args.out, time.strftime("%H%M"))
if rank == 0:
    os.makedirs(folder)
dist.barrier()
torch.save({}, os.path.join(folder, f"{rank}.pt"))""",
}
FINE = {
    "created before an assertion of the rank": """
if not os.path.exists(args.cache):
    os.makedirs(args.log_dir)
    assert rank == 0, "only the first rank prepares"
    torch.save({}, args.cache)""",
    "a barrier before merging": "write_part('out')\ndist.barrier()\nif rank == 0:\n    merge('out', 4)",
    "a barrier under a test": """
write_part('out')
if dist.is_initialized():
    dist.barrier()
if rank == 0:
    merge('out', 4)""",
    "another folder": "write_part('out')\nif rank == 0:\n    merge('old', 4)",
    "its own part": "write_part('out')\nif rank == 0:\n    open(part('out', rank)).read()",
    "read by the writer": "if rank == 0:\n    build('a/x.pt')\n    torch.load('a/x.pt')",
    "another file": "if rank == 0:\n    build('a/x.pt')\ntorch.load('a/y.pt')",
    "a barrier after preparing": "prepare('o')\ndist.barrier()\ntorch.save({}, f'o/{rank}.pt')",
    "all may create": "os.makedirs(args.log_dir, exist_ok=True)",
    "all may remove": "shutil.rmtree(args.log_dir, ignore_errors=True)",
    "a failure is handled": "try:\n    os.remove('a/x')\nexcept OSError:\n    pass",
    "one at a time": "with lock:\n    os.remove('a/x')",
    "another folder by rank": "os.makedirs(f'{args.log_dir}/{rank}')",
    "an unknown test of the rank": "if args.is_main:\n    os.makedirs(args.log_dir)",
    "a folder of the time by one rank": """
folder = os.path.join(args.out, time.strftime("%H%M"))
if rank == 0:
    os.makedirs(folder)
    torch.save({}, os.path.join(folder, "x.pt"))""",
}


def analyze(text):
    kinds = ("merged", "file", "unready", "folder", "removed", "created", "clocked")
    program = program_from_sources({"main": ("main.py", HEAD + text)})
    return [each.kind for each in program.analyze() if each.kind in kinds and not each.by_name]


@pytest.mark.parametrize("name", RACES)
def test_a_race_is_found(name):
    assert analyze(RACES[name]) == [name.partition(",")[0].partition(" ")[0]]


@pytest.mark.parametrize("name", FINE)
def test_ordered_accesses_are_fine(name):
    assert analyze(FINE[name]) == []


STARTS = """\
import os
import tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

class Store:
    def __init__(self, path):
        self.path = path
    def restore(self):
        return torch.load(self.path)
    def discard(self, rank):
        if rank == 0:
            os.remove(self.path)

def work(rank, folder):
    dist.init_process_group("gloo", rank=rank)
    {open}
        store = Store(os.path.join(folder, "x.pt"))
        store.restore()
        {wait}
        store.discard(rank)
    dist.destroy_process_group()

def main():
    {start}
        mp.spawn(work, args=(folder,), nprocs=2)

main()
"""
NEW = "with tempfile.TemporaryDirectory() as folder:"
BY_ID = "for folder in [f'/dev/shm/job-{os.getpid()}']:"


@pytest.mark.parametrize(
    ("start", "opening", "wait", "kinds"),
    [
        (NEW, "if True:", "", ["folder"]),
        (BY_ID, "if True:", "", ["folder"]),
        (NEW, "if True:", "dist.barrier()", []),
        (BY_ID, NEW, "", []),
    ],
)
def test_what_the_starting_process_names_is_shared(start, opening, wait, kinds):
    source = STARTS.format(start=start, open=opening, wait=wait)
    divergences = program_from_sources({"main": ("main.py", source)}).analyze()
    assert [each.kind for each in divergences if not each.by_name] == kinds
