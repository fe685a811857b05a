"""What is in a batch differs over ranks where a sampler shares the data out; its form does not."""

import pytest

from holdfast.facts.code.programs import program

PROGRAM = """\
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

def train(data, loss, device, group_rank):
    tokens = 0
    for step, batch in enumerate(DataLoader(data, sampler=DistributedSampler(data{group}))):
        x = batch["x"].to(device)
        {before}
        if {test}:
            dist.all_reduce(loss)
"""
DIFFERS = ["batch['mask'].any()", "(x != -100).all()", "int(x.sum()) > 5", "x[:, 0].max().item() > 1", "not x.any()"]
ALIKE = [
    "'x' in batch",
    "batch['y'] is None",
    "len(batch) > 1",
    "x.shape[0] > 1",
    "x.numel() > 4",
    "step % 4 == 0",
    "x.dtype == torch.float16",
    "x.dim() == 3",
]


def found(**parts):
    parts = {"group": "", "before": "pass", "test": "step"} | parts
    return [each.sources[0].kind.value for each in program({"main": ("main.py", PROGRAM.format(**parts))}).look()]


@pytest.mark.parametrize("test", DIFFERS)
def test_what_is_in_a_batch_is_a_ranks_own(test):
    assert found(test=test) == ["data"]


@pytest.mark.parametrize("test", ALIKE)
def test_its_form_is_the_same_for_all(test):
    assert found(test=test) == []


def test_a_count_of_what_is_in_batches_moves_a_boundary():
    assert found(before="tokens += x.sum().item()", test="tokens > 4096") == ["data"]


def test_what_all_agreed_on_is_the_same():
    assert found(before="seen = x.any().float(); dist.all_reduce(seen)", test="seen > 0") == []


def test_ranks_of_a_group_may_have_the_same_data():
    assert found(group=", rank=group_rank", test="x.any()") == []
    assert found(group=", rank=dist.get_rank()", test="x.any()") == ["data"]
