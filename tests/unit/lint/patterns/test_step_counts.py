"""Schedules by steps over data that ranks share."""

import pytest

from tests.unit.lint.programs import program_from_sources

PROGRAM = """\
import math
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
from transformers import get_cosine_schedule_with_warmup

class Trainer:
    def __init__(self, data, batch_size, epochs):
        self.world_size = dist.get_world_size()
        self.loader = DataLoader(data, batch_size, sampler=DistributedSampler(data))
        self.optimizer = torch.optim.SGD([torch.ones(1)], lr=1)
        {steps}
        self.schedule = {schedule}  # found
"""
COSINE = "torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=steps)"
WARMUP = "get_cosine_schedule_with_warmup(self.optimizer, 10, steps)"
FOUND = [
    ("steps = len(data) // batch_size * epochs", COSINE),
    ("steps = epochs * math.ceil(len(data) / batch_size)", WARMUP),
    ("per_epoch = len(data) // batch_size\n        steps = per_epoch * epochs", WARMUP),
]
FINE = [
    ("steps = len(data) // (batch_size * self.world_size) * epochs", COSINE),
    ("total = batch_size * self.world_size\n        steps = len(data) // total * epochs", COSINE),
    ("steps = len(self.loader) * epochs", WARMUP),
    ("steps = epochs", COSINE),
]


def found_lines(steps, schedule):
    text = PROGRAM.format(steps=steps, schedule=schedule)
    lines = text.splitlines()
    return [
        "# found" in lines[each.location.line - 1]
        for each in program_from_sources({"main": ("main.py", text)}).analyze()
        if each.kind == "habit-sampler"
    ]


@pytest.mark.parametrize(("steps", "schedule"), FOUND)
def test_a_schedule_over_all_data_is_found(steps, schedule):
    assert found_lines(steps, schedule) == [True]


@pytest.mark.parametrize(("steps", "schedule"), FINE)
def test_a_schedule_over_the_share_is_fine(steps, schedule):
    assert found_lines(steps, schedule) == []
