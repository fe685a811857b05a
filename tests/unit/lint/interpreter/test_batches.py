"""Batch content differs between ranks if a sampler shards the data; its shape does not."""

import pytest

from tests.unit.lint.programs import program_from_sources

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
DIFFERS = [
    "batch['mask'].any()",
    "(x != -100).all()",
    "int(x.sum()) > 5",
    "x[:, 0].max().item() > 1",
    "not x.any()",
]
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


def analyze(**parts):
    parts = {"group": "", "before": "pass", "test": "step"} | parts
    return [
        divergence.sources[0].kind.value
        for divergence in program_from_sources(
            {"main": ("main.py", PROGRAM.format(**parts))}
        ).analyze()
    ]


@pytest.mark.parametrize("test", DIFFERS)
def test_batch_content_is_rank_local(test):
    assert analyze(test=test) == ["data"]


@pytest.mark.parametrize("test", ALIKE)
def test_batch_shape_is_uniform(test):
    assert analyze(test=test) == []


def test_a_count_over_batches_is_rank_local():
    assert analyze(before="tokens += x.sum().item()", test="tokens > 4096") == ["data"]


def test_agreed_values_are_uniform():
    assert analyze(before="seen = x.any().float(); dist.all_reduce(seen)", test="seen > 0") == []


def test_ranks_of_a_group_may_share_data():
    assert analyze(group=", rank=group_rank", test="x.any()") == []
    assert analyze(group=", rank=dist.get_rank()", test="x.any()") == ["data"]
