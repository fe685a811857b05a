"""Meshes that ``DeviceMesh(device_type, ranks)`` creates: a collective call of all ranks."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

"""
WRONG = {
    "members only": """\
def build(parts):
    meshes = {}
    for name, ranks in parts.items():
        if dist.get_rank() not in ranks:
            continue
        meshes[name] = DeviceMesh("cuda", torch.tensor(ranks).view(2, -1))
    return meshes
""",
    "looked up": """\
def build(names, ranges):
    my_rank = dist.get_rank()
    for name in names:
        ranks = ranges[name]
        if my_rank not in ranks:
            continue
        yield DeviceMesh("cuda", torch.tensor(ranks), mesh_dim_names=("tp",))
""",
    "one rank": """\
class Layout:
    def __init__(self):
        self.is_first = dist.get_rank() == 0

    def mesh(self):
        if self.is_first:
            return make([0, 1])

def make(ranks):
    return DeviceMesh("cuda", mesh=torch.tensor(ranks))
""",
    "own ranks": """\
def build(size):
    first = dist.get_rank() // size * size
    return DeviceMesh("cuda", torch.arange(first, first + size))
""",
}
FINE = {
    "every rank": """\
def build(parts):
    own = None
    for name, ranks in parts.items():
        mesh = DeviceMesh("cuda", torch.tensor(ranks).view(2, -1))
        if dist.get_rank() in ranks:
            own = mesh
    return own
""",
    "all ranks": """\
mesh = DeviceMesh("cuda", torch.arange(dist.get_world_size()).reshape(-1, 2))
""",
    "layout only": """\
def build(ranks):
    if dist.get_rank() in ranks:
        return DeviceMesh("cuda", ranks, _init_backend=False)
""",
    "comprehension": """\
def build(parts):
    return {name: DeviceMesh("cuda", ranks) for name, ranks in parts}

own = {name: mesh for name, mesh in build([]).items() if dist.get_rank() in mesh.mesh}
""",
}


def analyze(text, *kinds):
    program = program_from_sources({"main": ("main.py", HEAD + text)})
    return [each for each in program.analyze() if each.kind in kinds]


@pytest.mark.parametrize("name", WRONG)
def test_meshes_that_not_all_ranks_create_are_found(name):
    (divergence,) = analyze(WRONG[name], "branch", "exit", "ranks")
    assert divergence.op_kind == "creation" or divergence.kind == "ranks"


@pytest.mark.parametrize("name", FINE)
def test_meshes_of_all_ranks_are_fine(name):
    assert analyze(FINE[name], "branch", "exit", "ranks", "loop") == []


@pytest.mark.parametrize(
    ("layout", "found"),
    [
        ("torch.arange(dist.get_world_size()).view(2, -1)", 1),
        ("torch.arange(8).view(2, 4)", 1),
        ("torch.arange(dist.get_world_size())", 0),  # the group of all ranks
        ("torch.tensor([0, 1])", 0),  # one group, which starts with rank 0
    ],
)
def test_positions_in_a_dimension_are_no_ranks_of_the_job(layout, found):
    names = '("dp", "tp")' if "view" in layout else '("tp",)'
    text = f"""\
mesh = DeviceMesh("cuda", {layout}, mesh_dim_names={names})
dist.broadcast(1, src=mesh.get_local_rank("tp"), group=mesh.get_group("tp"))
"""
    assert len(analyze(text, "group-rank")) == found
