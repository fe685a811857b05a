"""Long work of one rank before a collective, and work that may fail in a try block."""

import pytest

from tests.unit.lint.programs import program_from_sources

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
    "a subprocess": "if dist.get_rank() == 0:\n    subprocess.check_call(['make'])\ndist.barrier()",
    "rest of a function": "fetch('url')\nbox = [1]\ndist.broadcast_object_list(box, src=0)",
    "own function": "if dist.get_rank() == 0:\n    tokenize(['a'])\ndist.barrier()",
    "a loader": "loader = torch.utils.data.DataLoader([])\nif dist.get_rank() == 0:\n    for x in loader: print(x)\n"
    "dist.barrier()",
    "sleep": "if dist.get_rank() == 0:\n    time.sleep(3600)\ndist.barrier()",
}
SHORT = {
    "all ranks": "subprocess.check_call(['make'])\ndist.barrier()",
    "both sides": "if dist.get_rank() == 0:\n    tokenize(['a'])\nelse:\n    tokenize(['b'])\ndist.barrier()",
    "after the last collective": "dist.barrier()\nif dist.get_rank() == 0:\n    subprocess.check_call(['make'])",
    "has a limit": "if dist.get_rank() == 0:\n    subprocess.run(['make'], timeout=60)\ndist.barrier()",
    "a short sleep": "if dist.get_rank() == 0:\n    time.sleep(1)\ndist.barrier()",
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


def analyze(text, kind):
    return [
        divergence
        for divergence in program_from_sources({"main": ("main.py", text)}).analyze()
        if divergence.kind == kind
    ]


@pytest.mark.parametrize("name", LONG)
def test_long_work_of_one_rank_is_found_at_its_call(name):
    (divergence,) = analyze(DEFAULT + LONG[name], "long")
    assert divergence.detail
    assert divergence.op.name in ("barrier", "broadcast_object_list")


@pytest.mark.parametrize("name", SHORT)
def test_short_or_unawaited_work_is_fine(name):
    assert analyze(DEFAULT + SHORT[name], "long") == []


def test_a_program_with_its_own_or_unknown_timeout_is_ignored():
    own = HEAD + 'dist.init_process_group("nccl", timeout=datetime.timedelta(hours=2))\n'
    assert analyze(own + LONG["a subprocess"], "long") == []
    assert analyze(HEAD + LONG["a subprocess"], "long") == []


def test_a_failure_skips_a_collective_only_if_the_handler_continues():
    (divergence,) = analyze(HEAD + LEFT_OUT % ("Exception", "print('failed')"), "swallowed")
    assert divergence.op.name == "barrier"
    assert analyze(HEAD + LEFT_OUT % ("Exception", "raise"), "swallowed") == []
    assert analyze(HEAD + LEFT_OUT % ("KeyError", "pass"), "swallowed") == []
