"""Loaders that give every rank all of the data, where a model in DDP is trained over them."""

import pytest

from holdfast.facts.code.programs import program

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


def found(text):
    return [each.place.line for each in program({"main": ("main.py", text)}).look() if each.kind == "whole"]


@pytest.mark.parametrize("text", WHOLE)
def test_data_that_nobody_shares_out_are_found_where_they_are_trained_on(text):
    assert found(BACKWARD + text) == [BACKWARD[: BACKWARD.index("for batch")].count("\n") + 1]


@pytest.mark.parametrize("text", PARTS)
def test_data_of_a_ranks_own_are_not(text):
    assert found(BACKWARD + text) == []


def test_an_evaluation_may_be_of_all_data_on_every_rank():
    assert found(PROGRAM % "print(loss)" + WHOLE[0]) == []
