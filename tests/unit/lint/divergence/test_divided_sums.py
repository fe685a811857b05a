"""Sums over one group that are divided by the number of ranks of another."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import os
from dataclasses import dataclass
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from sums import summed

mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
dp, tp = mesh.get_group("dp"), mesh.get_group("tp")
x = torch.zeros(2)

@dataclass
class Layout:
    group: dist.ProcessGroup
    world_size: int

class Trainer:
    def __init__(self, group):
        self.group = group
        self.ranks = dist.get_world_size()

    def average(self, model):
        for p in model.parameters():
            dist.all_reduce(p.grad, group=self.group)
            p.grad.div_(self.ranks)

"""
SUMS = """\
import torch.distributed as dist

def summed(x, group=None):
    dist.all_reduce(x, group=group)
    return x
"""
WRONG = {
    "dist.all_reduce(x, group=dp)\nx /= dist.get_world_size()": "of all ranks",
    "mean = summed(x, dp).item() / dist.get_world_size()": "of all ranks",
    "Trainer(dp).average(read_model())": "of all ranks",
    "layout = Layout(tp, dist.get_world_size())\n"
    "dist.all_reduce(x, group=layout.group)\nx = x / layout.world_size": "of all ranks",
    "dist.all_reduce(x)\nx = x / mesh['dp'].size()": "of another group",
    "dist.all_reduce(x, group=tp)\nx.div_(dist.get_world_size(dp))": "of another group",
    "mean = summed(x) / int(os.environ['LOCAL_WORLD_SIZE'])": "of one host",
    "def average(x):\n    dist.all_reduce(x, op=dist.ReduceOp.AVG, group=dp)\n    return x\n"
    "y = average(x) / dist.get_world_size(dp)": "divides again",
}
FINE = [
    "dist.all_reduce(x, group=dp)\nx /= dist.get_world_size(dp)",
    "dist.all_reduce(x)\nx /= dist.get_world_size()",
    # the sums over both dimensions are one over all ranks
    "dist.all_reduce(x, group=dp)\ndist.all_reduce(x, group=tp)\nx /= dist.get_world_size()",
    "dist.all_reduce(x, op=dist.ReduceOp.MAX, group=dp)\nx /= dist.get_world_size()",
    "dist.all_reduce(x, group=read_group())\nx /= dist.get_world_size()",
    "dist.all_reduce(x, group=dp)\nx = read()\nx /= dist.get_world_size()",
    "group = read_group()\ndist.all_reduce(x)\nx /= dist.get_world_size(group)",
]
ROOTS = {
    "dist.broadcast(x, src=0, group=dp)": 1,
    "def share(x, group):\n    dist.broadcast_object_list([x], src=0, group=group)\n"
    "share(x, Layout(tp, 1).group)": 1,
    "dist.reduce(x, 0, group=tp)": 1,
    "dist.broadcast(x, group_src=0, group=dp)": 0,
    "dist.broadcast(x, src=dist.get_global_rank(dp, 0), group=dp)": 0,
    # one of the groups
    "if mesh.get_local_rank('tp') == 0:\n    dist.broadcast(x, src=0, group=dp)": 0,
    "dist.broadcast(x, src=0, group=dist.new_group([0, 1]))": 0,
}


def details(text, kind):
    sources = {"main": ("main.py", HEAD + text + "\n"), "sums": ("sums.py", SUMS)}
    return [each.detail for each in program_from_sources(sources).analyze() if each.kind == kind]


@pytest.mark.parametrize("text", WRONG)
def test_divisions_by_the_number_of_other_ranks_are_found(text):
    (message,) = details(text, "habit-result")
    assert WRONG[text] in message


@pytest.mark.parametrize("text", FINE)
def test_divisions_by_the_number_of_the_ranks_are_fine(text):
    assert details(text, "habit-result") == []


@pytest.mark.parametrize("text", ROOTS)
def test_one_rank_as_the_root_of_several_groups_is_found(text):
    found = details(text, "group-rank")
    assert len(found) == ROOTS[text]
    assert all("in one of these groups only" in message for message in found)
