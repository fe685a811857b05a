"""Work of one rank with a collective behind it: what takes long by its nature, and what may fail in a guarded block."""

import pytest

from holdfast.facts.code.programs import program

HEAD = """\
import datetime
import json
import subprocess
import time
from urllib.request import urlretrieve

import torch
import torch.distributed as dist

def tokenize(files):
    return [open(file).read() for file in files]

def evaluate(model, loader):
    for batch in loader:
        model(batch)

def fetch(url):
    if dist.get_rank() != 0:
        return
    urlretrieve(url, "data.tar")

"""
DEFAULT = HEAD + 'dist.init_process_group("nccl")\n'
LONG = {
    "another program": "if dist.get_rank() == 0:\n    subprocess.check_call(['make'])\ndist.barrier()",
    "the rest of a function": "fetch('url')\nbox = [1]\ndist.broadcast_object_list(box, src=0)",
    "own function": "if dist.get_rank() == 0:\n    tokenize(['a'])\ndist.barrier()",
    "a loader": "loader = torch.utils.data.DataLoader([])\nif dist.get_rank() == 0:\n    for x in loader: print(x)\n"
    "dist.barrier()",
    "sleep": "if dist.get_rank() == 0:\n    time.sleep(3600)\ndist.barrier()",
}
SHORT = {
    "all ranks": "subprocess.check_call(['make'])\ndist.barrier()",
    "both sides": "if dist.get_rank() == 0:\n    tokenize(['a'])\nelse:\n    tokenize(['b'])\ndist.barrier()",
    "after the last": "dist.barrier()\nif dist.get_rank() == 0:\n    subprocess.check_call(['make'])",
    "has a limit": "if dist.get_rank() == 0:\n    subprocess.run(['make'], timeout=60)\ndist.barrier()",
    "a nap": "if dist.get_rank() == 0:\n    time.sleep(1)\ndist.barrier()",
    "a folder": "import os\nif dist.get_rank() == 0:\n    os.makedirs('out')\ndist.barrier()",
    "its own limit": "if dist.get_rank() == 0:\n    tokenize(['a'])\n"
    "dist.monitored_barrier(timeout=datetime.timedelta(hours=2))",
}
LEFT_OUT = """\
try:
    if dist.get_rank() == 0:
        with open("results.json", "w") as file:
            json.dump({}, file)
    dist.barrier()
except %s:
    %s
"""


def found(text, kind):
    return [each for each in program({"main": ("main.py", text)}).look() if each.kind == kind]


@pytest.mark.parametrize("name", LONG)
def test_long_work_of_one_rank_is_found_where_it_is_called_from(name):
    (parting,) = found(DEFAULT + LONG[name], "long")
    assert parting.how
    assert parting.op.name in ("barrier", "broadcast_object_list")


@pytest.mark.parametrize("name", SHORT)
def test_work_that_nobody_waits_for_or_that_is_short_is_not(name):
    assert found(DEFAULT + SHORT[name], "long") == []


def test_a_program_with_a_limit_of_its_own_or_none_in_sight_is_left_alone():
    own = HEAD + 'dist.init_process_group("nccl", timeout=datetime.timedelta(hours=2))\n'
    assert found(own + LONG["another program"], "long") == []
    assert found(HEAD + LONG["another program"], "long") == []


def test_work_that_may_fail_leaves_out_a_collective_only_where_the_handler_goes_on():
    (parting,) = found(HEAD + LEFT_OUT % ("Exception", "print('failed')"), "swallowed")
    assert parting.op.name == "barrier"
    assert found(HEAD + LEFT_OUT % ("Exception", "raise"), "swallowed") == []
    assert found(HEAD + LEFT_OUT % ("KeyError", "pass"), "swallowed") == []
