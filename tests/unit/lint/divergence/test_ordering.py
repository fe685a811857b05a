"""DDP training loops over a loader that gives every rank all data."""

import pytest

from tests.unit.lint.programs import program_from_sources

PROGRAM = """\
import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

class Images(Dataset):
    def __init__(self):
        self.images = load_images()

class Parts(Dataset):
    def __init__(self, part):
        self.images = load_images()[dist.get_rank()::dist.get_world_size()]

class Lines(IterableDataset):
    pass

def train(model, loader):
    for batch in loader:
        loss = model(batch).mean()
        %s

"""
BACKWARD = PROGRAM % "loss.backward()"
WHOLE = [
    "train(DDP(net), DataLoader(Images(), shuffle=True))",
    "train(DDP(net), DataLoader(images, batch_size=8))",
    "loader = DataLoader(images)\nfor epoch in range(3):\n    train(DDP(net), loader)",
]
PARTS = [
    "train(DDP(net), DataLoader(images, sampler=DistributedSampler(images)))",
    "train(DDP(net), DataLoader(images, batch_sampler=make(images)))",
    "train(DDP(net), DataLoader(Parts(), shuffle=True))",
    "train(DDP(net), DataLoader(Lines()))",
    "train(DDP(net), DataLoader(images[dist.get_rank()::2]))",
    "train(DDP(net), DataLoader(images, generator=mine))",
    "train(DDP(net), DataLoader(images, **options))",
    "train(net, DataLoader(images))",
    "train(torch.distributed.fsdp.FullyShardedDataParallel(net), DataLoader(images))",
    "accelerator = Accelerator()\nmodel, loader = accelerator.prepare(net, DataLoader(images))\ntrain(model, loader)",
    "if dist.get_rank() == 0:\n    train(DDP(net), DataLoader(images))",
]


def analyze(text):
    return [
        divergence.location.line
        for divergence in program_from_sources({"main": ("main.py", text)}).analyze()
        if divergence.kind == "unsharded"
    ]


@pytest.mark.parametrize("text", WHOLE)
def test_unsharded_training_data_are_found_at_the_loop(text):
    assert analyze(BACKWARD + text) == [BACKWARD[: BACKWARD.index("for batch")].count("\n") + 1]


@pytest.mark.parametrize("text", PARTS)
def test_rank_specific_data_are_fine(text):
    assert analyze(BACKWARD + text) == []


def test_evaluation_may_use_all_data_on_every_rank():
    assert analyze(PROGRAM % "print(loss)" + WHOLE[0]) == []
