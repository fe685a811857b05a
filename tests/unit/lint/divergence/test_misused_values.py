"""Values passed to the wrong call: kinds of ranks, temporaries, and the rank before the group."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DistributedSampler

def env():
    return int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

class ShardSampler:
    def __init__(self, data, num_replicas, rank):
        self.items = data[rank::num_replicas]

local, rank, world = env()
"""
INIT = 'dist.init_process_group("nccl")\n'
MISUSED = {
    "habit-local-rank": "def make(data, index):\n    return DistributedSampler(data, world, index)\n"
    "make([], local)",
    "habit-local-rank of a class of the program": "ShardSampler([1], num_replicas=world, rank=local)",
    "habit-local-rank of the group": 'dist.init_process_group("nccl", rank=local, world_size=world)',
    "habit-device": "class Context:\n    def __init__(self, rank):\n        self.device = "
    "torch.device('cuda', rank)\nContext(rank)",
    "habit-device in a name": "torch.device(f'cuda:{rank}')",
    "habit-result": "def mean(x):\n    dist.all_reduce(x / world)\n    return x\nmean(t)",
    "early": "if dist.get_rank() == 0:\n    print()\n" + INIT,
    "bare": """
class Trainer:
    def __init__(self, model):
        self.model = model
        self.parallel = DDP(self.model)
    def step(self, x):
        self.model(x).sum().backward()
Trainer(torch.nn.Linear(1, 1)).step(t)""",
    "bare through a function": """
def unwrap(model):
    return model.module if hasattr(model, "module") else model
loss = unwrap(DDP(build()))(t).mean()
loss.backward()""",
}
FINE = {
    "the global rank": "DistributedSampler([], world, rank)",
    "the local rank among local ranks": "DistributedSampler([], local_world_size, local)",
    "the rank within the host": "torch.device('cuda', rank % torch.cuda.device_count())",
    "the local rank as device": "torch.device(f'cuda:{local}')",
    "a named tensor": "x = x / world\ndist.all_reduce(x)",
    "a barrier of a constant": "dist.all_reduce(torch.zeros(1))",
    "after the group": INIT + "if dist.get_rank() == 0:\n    print()\n",
    "if there is a group": "if dist.is_initialized():\n    print(dist.get_rank())\n" + INIT,
    "a failure is expected": "try:\n    dist.get_rank()\nexcept RuntimeError:\n    pass\n" + INIT,
    "the wrapper": "model = DDP(build())\nmodel(t).sum().backward()",
    "evaluation without the wrapper": "model = DDP(build())\nprint(model.module(t))",
    "both": "model = DDP(build())\nmodel(t).sum().backward()\nmodel.module(t).sum().backward()",
}


def analyze(text):
    kinds = ("habit-local-rank", "habit-device", "habit-result", "early", "bare")
    program = program_from_sources({"main": ("main.py", HEAD + text)})
    return [divergence.kind for divergence in program.analyze() if divergence.kind in kinds]


@pytest.mark.parametrize("name", MISUSED)
def test_misuse_is_found(name):
    assert analyze(MISUSED[name]) == [name.partition(" ")[0]]


@pytest.mark.parametrize("name", FINE)
def test_right_use_is_fine(name):
    assert analyze(FINE[name]) == []


def test_amp_keeps_the_distributed_backward():
    text = "model = DDP(build())\nscaler = torch.cuda.amp.GradScaler()\nif local == 0:\n"
    text += "    loss = model(t)\n    scaler.scale(loss / 2).backward()\n"
    found = program_from_sources({"main": ("main.py", HEAD + INIT + text)}).analyze()
    assert any(each.op is not None and each.op.kind == "backward" for each in found)
