"""Folders and files named by a process's own clock, number or random name."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import datetime
import os
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

"""
SAVE = """
accelerator = Accelerator()
accelerator.save_state(str(run.folder))
"""
ATTRIBUTE = """\
class Run:
    def __init__(self, root):
        self.folder = os.path.join(root, time.strftime("%H%M%S"))  # found

run = Run("out")
"""
FACTORY = """\
@dataclass
class Run:
    folder: str = field(default_factory=lambda: str(uuid.uuid4()))  # found

run = Run()
"""
FILLED = """\
@dataclass
class Run:
    folder: str | None = None

    def validate(self):
        if self.folder is None:
            now = datetime.datetime.now()  # found
            self.folder = Path("out") / f"{now:%H%M}"

run = Run()
run.validate()
"""
PROPERTY = """\
class Run:
    def __init__(self):
        self.started = datetime.datetime.now()  # found

    @property
    def folder(self):
        return Path("out") / self.started.strftime("%H%M%S")

run = Run()
"""
ARGUMENTS = """\
def prepare(args):
    args.folder = f"out/{os.getpid()}"  # found

def save(args):
    dcp.save({}, checkpoint_id=os.path.join(args.folder, "last"))

def main(args):
    dist.init_process_group("gloo")
    prepare(args)
    save(args)
"""
FOUND = [ATTRIBUTE + SAVE, FACTORY + SAVE, FILLED + SAVE, PROPERTY + SAVE, ARGUMENTS]
AGREE = "run.folder = broadcast_object_list([str(run.folder)], from_process=0)[0]\n"
IN_PLACE = """
dist.init_process_group("gloo")
chosen = [run.folder]
dist.broadcast_object_list(chosen, src=0)
run.folder = chosen[0]
"""
FINE = [
    ATTRIBUTE + AGREE + SAVE,
    ATTRIBUTE + IN_PLACE + SAVE,
    FILLED + AGREE + SAVE,
    ATTRIBUTE + "accelerator = Accelerator()\naccelerator.save_state('out/last')\n",
    f"{ARGUMENTS}\ntorch.multiprocessing.spawn(main)\n",  # one process may name the folder
    """\
class Run:
    def __init__(self):
        self.begin = time.time()

    def save(self, accelerator, step):
        accelerator.save_state(f"out/{step}")
        print(time.time() - self.begin)

Run().save(Accelerator(), 3)
""",
]


def found_lines(body, kind):
    text = f"{HEAD}{body}"
    program = program_from_sources({"main": ("main.py", text)})
    lines = text.splitlines()
    return [
        "# found" in lines[each.location.line - 1]
        for each in program.analyze()
        if each.kind == kind and each.guard != each.location
    ]


@pytest.mark.parametrize("body", FOUND)
def test_a_sharded_checkpoint_in_a_folder_of_each_process_is_found(body):
    assert found_lines(body, "habit-name") == [True]


@pytest.mark.parametrize("body", FINE)
def test_a_folder_that_ranks_agree_on_is_fine(body):
    assert found_lines(body, "habit-name") == []


def test_the_name_may_come_from_another_file():
    settings = f"import os, time\n{ATTRIBUTE.partition('run =')[0]}"
    main = f"{HEAD}from settings import Run\nrun = Run('out'){SAVE}"
    program = program_from_sources(
        {"main": ("main.py", main), "settings": ("settings.py", settings)}
    )
    found = [each for each in program.analyze() if each.kind == "habit-name"]
    assert [each.location.file for each in found] == ["settings.py"]


CACHE = """\
class Cache:
    def __init__(self, root):
        self.path = %s

    def build(self, rows):
        if dist.get_rank() == 0:
            torch.save(rows, self.path)
        dist.barrier()
        return torch.load(self.path)  # found

def main(rows):
    dist.init_process_group("gloo")
    return Cache("/data").build(rows)

main([])
"""
OWN_NAMES = [
    'os.path.join(root, f"cache_{os.getpid()}.pt")',
    'os.path.join(tempfile.mkdtemp(), "cache.pt")',
    'Path(root) / time.strftime("%H%M") / "cache.pt"',
]
SHARED_NAMES = ['os.path.join(root, "cache.pt")', 'Path(root) / "cache" / "rows.pt"']


@pytest.mark.parametrize("path", OWN_NAMES)
def test_a_file_that_one_rank_writes_under_a_name_of_its_own_is_found(path):
    assert found_lines(CACHE % path, "clocked") == [True]


@pytest.mark.parametrize("path", SHARED_NAMES)
def test_a_file_with_one_name_is_fine(path):
    assert found_lines(CACHE % path, "clocked") == []


def test_a_name_that_was_broadcast_is_fine():
    body = (CACHE % OWN_NAMES[1]).replace(
        "    def build(self, rows):\n",
        "    def build(self, rows):\n        chosen = [self.path]\n"
        "        dist.broadcast_object_list(chosen, src=0)\n        self.path = chosen[0]\n",
    )
    assert found_lines(body, "clocked") == []


def test_each_rank_may_write_and_read_its_own_file():
    body = (CACHE % OWN_NAMES[1]).replace("        if dist.get_rank() == 0:\n    ", "")
    assert found_lines(body, "clocked") == []
