"""Shares of the data in a file that one rank writes."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import json
import os
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
"""
SAMPLER = """\
class Sampler:
    def __init__(self, items, rank, world):
        self.schedule = list(items)[rank::world]
        self.position = 0

    def state_dict(self):
        return {{"schedule": self.schedule, "position": self.position}}

class Trainer:
    def __init__(self, sampler):
        self.sampler, self.is_main = sampler, dist.get_rank() == 0

    def save(self):
        {save}

    def resume(self):
        self.sampler.load_state_dict(torch.load("sampler.pt"))

Trainer(Sampler(range(9), rank, world)).save()
"""
RESULTS = """\
def score(rows):
    return [row * 2 for row in rows[rank::world]]

def main(rows):
    results = score(rows)
    {share}
    if rank == 0:
        with open("results.json", "w") as file:
            json.dump({saved}, file)  # found

main(list(range(9)))
"""
OPTIMIZER = """\
def save(net):
    model = {model}
    optimizer = torch.optim.AdamW(model.parameters())
    with FSDP.state_dict_type(model, FULL):
        weights = model.state_dict()
        whole = FSDP.optim_state_dict(model, optimizer)
    if rank == 0:
        torch.save({saved}, "last.pt")  # found

save(torch.nn.Linear(4, 4))
"""
GATHERED = """parts = [None] * world
    dist.all_gather_object(parts, results)"""
ALONE = "if self.is_main:\n            torch.save(self.sampler.state_dict(), 'sampler.pt')  # found"
EACH = "torch.save(self.sampler.state_dict(), f'sampler{dist.get_rank()}.pt')"
POSITION = "if self.is_main:\n            torch.save({'at': self.sampler.position}, 'x.pt')"
FOUND = [
    SAMPLER.format(save=ALONE),
    RESULTS.format(share="pass", saved="results"),
    RESULTS.format(share="pass", saved="{'rows': results, 'world': world}"),
    OPTIMIZER.format(model="FSDP(net)", saved="optimizer.state_dict()"),
    OPTIMIZER.format(
        model="FSDP(net)", saved="{'weights': weights, 'state': optimizer.state_dict()}"
    ),
]
FINE = [
    SAMPLER.format(save=EACH),
    SAMPLER.format(save=POSITION),
    RESULTS.format(share=GATHERED, saved="parts"),
    RESULTS.format(share="pass", saved="{'rank': rank}"),
    RESULTS.format(share="results = rows", saved="results"),
    OPTIMIZER.format(model="FSDP(net)", saved="{'weights': weights, 'state': whole}"),
    OPTIMIZER.format(model="DDP(net)", saved="optimizer.state_dict()"),
]


def found_lines(body):
    text = f"{HEAD}{body}"
    lines = text.splitlines()
    return [
        "# found" in lines[each.location.line - 1]
        for each in program_from_sources({"main": ("main.py", text)}).analyze()
        if "one rank saves its own" in each.detail
    ]


@pytest.mark.parametrize("body", FOUND)
def test_a_share_that_one_rank_saves_is_found(body):
    assert found_lines(body) == [True]


@pytest.mark.parametrize("body", FINE)
def test_shares_that_are_gathered_or_saved_by_each_rank_are_fine(body):
    assert found_lines(body) == []
