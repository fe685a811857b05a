"""Positions in a group in place of ranks of the job, and the reverse."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

mesh = init_device_mesh("cuda", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
g = mesh.get_group("cp")
for first in range(0, dist.get_world_size(), 4):
    made = dist.new_group(list(range(first, first + 4)))
    if first <= dist.get_rank() < first + 4:
        own = made
actors = dist.new_group(list(range(4)))

"""
WRONG = [
    'dist.broadcast(1, src=mesh.get_local_rank("cp"), group=g)',
    'dist.broadcast(1, src=mesh["cp"].size() - 1, group=g)',
    'for turn in range(mesh["cp"].size()):\n    dist.broadcast(1, src=turn, group=g)',
    "dist.send(1, dst=(dist.get_rank(own) + 1) % dist.get_world_size(own), group=own)",
    "dist.P2POp(dist.isend, 1, dist.get_rank(own) + 1, own)",
    "dist.irecv(1, src=dist.get_rank(own) - 1)",
    "for owner in read():\n    if dist.get_rank(own) != owner:\n        dist.send(1, owner, own)",
    "dist.get_global_rank(own, dist.get_rank())",
    "dist.get_group_rank(own, dist.get_rank(own))",
    "dist.broadcast(1, group_src=dist.get_rank(), group=own)",
]
FINE = [
    "dist.broadcast(1, src=dist.get_global_rank(g, dist.get_rank(g)), group=g)",
    "dist.broadcast(1, group_src=dist.get_rank(own), group=own)",
    # the outermost dimension: the first member's rank is the position in the others
    'dist.broadcast(1, src=mesh.get_local_rank("tp"), group=mesh.get_group("dp"))',
    "dist.broadcast(1, src=dist.get_rank(actors), group=actors)",  # ranks 0 to 3
    "dist.send(1, dst=dist.get_rank(own))",
    "for owner in read():\n    if dist.get_rank() != owner:\n        dist.send(1, owner, own)",
    "owner = 0\nif dist.get_rank(own) != owner:\n    dist.send(1, owner, own)",
    "dist.send(1, dst=dist.get_rank() + 1, group=own)",
    "dist.get_group_rank(own, dist.get_rank())",
    "dist.broadcast(1, src=dist.get_rank(dist.group.WORLD), group=own)",
]


def messages(text):
    program = program_from_sources({"main": ("main.py", HEAD + text)})
    return [each.detail for each in program.analyze() if each.kind == "group-rank"]


@pytest.mark.parametrize("text", WRONG)
def test_numbers_of_the_wrong_kind_are_found(text):
    (message,) = messages(text)
    assert "position in" in message


@pytest.mark.parametrize("text", FINE)
def test_numbers_of_the_right_kind_are_fine(text):
    assert messages(text) == []
