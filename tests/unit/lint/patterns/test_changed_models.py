"""Parameters that change after DDP or FSDP wrapped their model."""

import pytest

from tests.unit.lint.programs import program_from_sources

FREEZING = """
def set_trainable(part, flag):
    for p in part.parameters():
        p.requires_grad_(flag)
def count(part):
    return sum(1 for p in part.parameters() if p.requires_grad)
"""
WRAPS = """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from freezing import count, set_trainable
class Trainer:
    def __init__(self, net):
        {before}
        self.model = DDP(net)
        {after}
def fit(net, loader, epoch):
    model = DDP(net)
    {in_function}
"""
HOOK = """
from freezing import count, set_trainable
class Unfreeze:
    def before_epoch(self, trainer, epoch):
        {}
"""


def changes(before="pass", after="pass", in_function="pass", hook="pass"):
    wraps = WRAPS.format(before=before, after=after, in_function=in_function)
    files = {
        "train": ("train.py", wraps),
        "hooks": ("hooks.py", HOOK.format(hook)),
        "freezing": ("freezing.py", FREEZING),
    }
    found = program_from_sources(files).analyze()
    return [each.location.file for each in found if each.kind == "habit-state"]


@pytest.mark.parametrize(
    "change",
    [
        "net.head = torch.nn.Linear(4, 2)",
        "net.trunk.requires_grad_(True)",
        "set_trainable(net.trunk, True)",
        "for p in net.trunk.parameters(): p.requires_grad = True",
    ],
)
def test_a_change_by_the_name_of_the_model_inside(change):
    assert changes(in_function=change) == ["train.py"]
    assert changes(before=change) == []
    assert changes(in_function=change.replace("net.", "other.")) == []


def test_a_helper_that_freezes_in_another_file():
    assert changes(in_function="set_trainable(model.module.trunk, True)") == ["train.py"]
    assert changes(in_function="count(model.module.trunk)") == []


def test_a_hook_that_freezes_a_part_of_the_trainers_model():
    assert changes(hook="set_trainable(trainer.model.module.trunk, True)") == ["hooks.py"]
    assert changes(hook="count(trainer.model.module.trunk)") == []
    assert changes(hook="set_trainable(trainer.ema.module.trunk, True)") == []


SHARDS = """
import torch
from torch.distributed.fsdp import fully_shard
class Net(torch.nn.Module):
    def forward(self, x):
        return x
def build():
    net = Net()
    {}
    {}
    return net, optimizer
"""
OPTIMIZER = "optimizer = torch.optim.AdamW(net.parameters())"


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [(OPTIMIZER, "fully_shard(net)", 1), ("fully_shard(net)", OPTIMIZER, 0)],
)
def test_an_optimizer_that_gets_the_parameters_before_they_are_sharded(first, second, count):
    files = {"train": ("train.py", SHARDS.format(first, second))}
    found = program_from_sources(files).analyze()
    assert len([each for each in found if each.kind == "habit-state"]) == count
