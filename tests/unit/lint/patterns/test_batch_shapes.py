"""Gathers of tensors that a collate function pads to the longest text of the batch."""

import pytest

from tests.unit.lint.programs import program_from_sources

COLLATE = """\
import torch
from torch.nn.utils.rnn import pad_sequence

def collate(rows):
    tags = pad_sequence([row[1] for row in rows], batch_first=True)
    return {"words": pad_sequence([row[0] for row in rows]), "tags": tags, "kind": torch.ones(8)}
"""
HEAD = """\
import torch
import torch.distributed as dist
from batches import collate

def evaluate(accelerator, out, batch):
"""
FOUND = [
    "    tags = batch['tags']\n    return accelerator.gather_for_metrics((out, tags))",
    "    return accelerator.gather(batch['words'].to('cuda'))",
    "    dist.all_gather_into_tensor(out, batch['tags'])",
]
FINE = [
    "    return accelerator.gather(batch['kind'])",
    "    return accelerator.gather(batch['tags'].sum())",
    "    tags = accelerator.pad_across_processes(batch['tags'], dim=1)\n    return accelerator.gather(tags)",
]


def kinds(body, head=HEAD):
    files = {"batches": ("batches.py", COLLATE), "main": ("main.py", f"{head}{body}\n")}
    return [each.kind for each in program_from_sources(files).analyze() if each.kind == "padded"]


@pytest.mark.parametrize("body", FOUND)
def test_a_gather_of_what_is_padded_per_batch_is_found(body):
    assert kinds(body) == ["padded"]


@pytest.mark.parametrize("body", FINE)
def test_equal_shapes_are_fine(body):
    assert kinds(body) == []


def test_the_collate_function_of_another_script_pads_nothing_here():
    assert kinds(FOUND[0], HEAD.replace("from batches import collate\n", "")) == []
