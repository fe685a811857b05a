"""Collectives in threads, and GPUs selected after the first collective."""

import pytest

from tests.unit.lint.programs import program_from_sources

THREADS = """\
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
import torch
import torch.distributed as dist

def count(seen, group=None):
    dist.all_reduce(seen, group=group)

class Writer:
    def __init__(self):
        self.pool = ThreadPoolExecutor(1)
        self.side = dist.new_group()

    def write(self, seen):
%s

writer = Writer()
writer.write(torch.ones(1))
dist.all_reduce(torch.ones(1))
"""
BESIDE = [
    "self.pool.submit(count, seen)",
    "self.last = self.pool.submit(partial(count, seen))",
    "threading.Thread(target=partial(count, seen)).start()",
    "threading.Thread(target=count, args=(seen,)).start()",
    "threading.Timer(3.0, count, args=(seen,)).start()",
]
APART = [
    "self.pool.submit(count, seen, self.side)",
    "self.pool.submit(count, seen, group=self.side)",
    "threading.Thread(target=count, args=(seen, self.side)).start()",
    "threading.Thread(target=count, args=(seen,), kwargs={'group': self.side}).start()",
    "threading.Timer(3.0, partial(count, seen, self.side)).start()",
    "self.pool.submit(count, seen).result()",
    "last = self.pool.submit(count, seen)\n        last.result()",
    "with ThreadPoolExecutor() as pool:\n            pool.submit(count, seen)",
    "self.pool.submit(print, seen)",
]

DEVICES = """\
import os
import torch
import torch.distributed as dist

class Base:
    def start(self):
        self.connect()
        self.agree()
        self.take()

    def connect(self):
        dist.init_process_group(self.backend)

    def agree(self):
        dist.broadcast_object_list([None], src=0)

class OnProcessors(Base):
    backend = "gloo"

    def take(self):
        torch.set_num_threads(1)

class OnGpus(Base):
    backend = "nccl"

    def take(self):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))

def make():
    kind = OnGpus if torch.cuda.is_available() else OnProcessors
    return kind()

"""
LATE = [
    "make().start()",
    (
        "if gpus:\n    dist.init_process_group('nccl')\nelse:\n    dist.init_process_group('gloo')\n"
        "dist.barrier()\nif gpus:\n    torch.cuda.set_device(1)"
    ),
]
IN_TIME = [
    (
        "if gpus:\n    dist.init_process_group('nccl')\nelse:\n    dist.init_process_group('gloo')\n"
        "    dist.barrier()\ntorch.cuda.set_device(1)"
    ),
    "dist.init_process_group('gloo')\ndist.barrier()\ntorch.cuda.set_device(1)",
    "if gpus:\n    torch.cuda.set_device(1)\ndist.init_process_group('nccl')\ndist.barrier()\ntorch.cuda.set_device(1)",
    (
        "if new:\n    dist.init_process_group('nccl', device_id=gpu)\nelse:\n    dist.init_process_group('nccl')\n"
        "dist.barrier()\ntorch.cuda.set_device(1)"
    ),
    (
        "class Other(OnGpus):\n    def start(self):\n        self.take()\n        self.connect()\n"
        "        self.agree()\nOther().start()"
    ),
]


def analyze(kind, text):
    return [
        divergence.location.line
        for divergence in program_from_sources({"main": ("main.py", text)}).analyze()
        if divergence.kind == kind
    ]


@pytest.mark.parametrize("text", BESIDE)
def test_a_thread_on_the_programs_group_is_found(text):
    assert analyze("thread", THREADS % f"        {text}") == [8]


@pytest.mark.parametrize("text", APART)
def test_an_awaited_thread_or_one_on_its_own_group_is_fine(text):
    assert analyze("thread", THREADS % f"        {text}") == []


@pytest.mark.parametrize("text", LATE)
def test_a_gpu_selected_after_a_collective_is_found(text):
    assert len(analyze("device", DEVICES + text)) == 1


@pytest.mark.parametrize("text", IN_TIME)
def test_a_gpu_selected_in_time_is_fine(text):
    devices = DEVICES.partition("class Base")[0] if "OnGpus" not in text else DEVICES
    assert analyze("device", devices + text) == []
