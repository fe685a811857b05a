"""Lists and tensors of collectives that do not fit their group, or are passed on wrong ranks."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
from dataclasses import dataclass
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from buffers import repeated, one_each

mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
tp = mesh.get_group("tp")
x = torch.zeros(2, 4)

@dataclass
class Layout:
    group: dist.ProcessGroup
    world_size: int
    tp_size: int

layout = Layout(tp, dist.get_world_size(), dist.get_world_size(tp))

"""
BUFFERS = """\
import torch

def repeated(x, count):
    return [torch.zeros_like(x)] * count

def one_each(x, count):
    return [torch.zeros_like(x) for _ in range(count)]
"""
WRONG_COUNTS = [
    "dist.all_gather([torch.empty_like(x) for _ in range(dist.get_world_size())], x, group=tp)",
    "dist.all_gather(one_each(x, layout.world_size), x, group=layout.group)",
    "dist.all_gather_object([None] * dist.get_world_size(), 1, group=mesh['dp'].get_group())",
    (
        "out = x.new_empty(layout.world_size * 2, 4)\n"
        "dist.all_gather_into_tensor(out, x, group=layout.group)"
    ),
    "dist.all_gather(one_each(x, mesh['tp'].size()), x)",
    "dist.all_gather(one_each(x, layout.tp_size), x, group=mesh.get_group('dp'))",
    "rows = torch.zeros(dist.get_world_size(tp), 4)\ndist.reduce_scatter_tensor(x, rows)",
]
FINE_COUNTS = [
    "dist.all_gather([torch.empty_like(x) for _ in range(dist.get_world_size())], x)",
    "dist.all_gather(one_each(x, layout.tp_size), x, group=layout.group)",
    "dist.all_gather_object([None] * dist.get_world_size(), 1, group=dist.group.WORLD)",
    (
        "out = x.new_empty(layout.tp_size * 2, 4)\n"
        "dist.all_gather_into_tensor(out, x, group=layout.group)"
    ),
    "dist.all_gather([x] * read_size(), x, group=read_group())",
]
#: The group is unknown, so that the number of its ranks may be that of the job.
PERHAPS = """\
def collect(keys, group=None):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, keys, group=group)
    return found
collect([], read_group())
"""
REPEATED = [
    "dist.all_gather([torch.zeros_like(x)] * dist.get_world_size(), x)",
    "parts = repeated(x, dist.get_world_size())\ndist.all_gather(parts, x)",
    "parts = [x] * 8\ndist.gather(x, parts if dist.get_rank() == 0 else None, dst=0)",
]
WRONG_RANKS = [
    "def run(x):\n    parts = one_each(x, dist.get_world_size())\n    dist.gather(x, parts, dst=0)",
    "def run(x):\n    dist.gather_object(x, [None] * dist.get_world_size(), dst=0)",
    "def run(x):\n    dist.gather(x)",
    "def run(x):\n    dist.gather_object(x, None, dst=0)",
    "def run(x):\n    dist.scatter(x, src=0)",
]
FINE_RANKS = [
    (
        "def run(x):\n    first = dist.get_rank() == 0\n"
        "    dist.gather(x, one_each(x, dist.get_world_size()) if first else None, dst=0)"
    ),
    (
        "def run(x):\n    parts = None\n    if dist.get_rank() == 0:\n"
        "        parts = one_each(x, dist.get_world_size())\n    dist.gather(x, parts, dst=0)"
    ),
    (
        "def run(x, is_root):\n    if is_root:\n        dist.gather(x, [x, x])\n    else:\n"
        "        dist.gather(x)"
    ),
    "def run(x, parts=None):\n    dist.gather(x, parts)",
    # the other ranks' list is not read
    "def run(x, rows):\n    dist.scatter_object_list(x, [1, 2], src=0)",
    "def run(x, keep):\n    if keep.is_main:\n        dist.gather(x, [x, x])",
]
WRONG_SIZES = [
    "def run(x):\n    out = torch.empty_like(x)\n    dist.all_gather_into_tensor(out, x)",
    "def run(x):\n    out = torch.zeros_like(x)\n    dist.reduce_scatter_tensor(out, x, group=tp)",
]
FINE_SIZES = [
    "def run(x, n):\n    out = x.new_empty(n * len(x))\n    dist.all_gather_into_tensor(out, x)",
    (
        "def run(x, n):\n    out = torch.empty_like(x)\n    out = out.repeat(n)\n"
        "    dist.all_gather_into_tensor(out, x)"
    ),
]


def details(text, kind):
    sources = {"main": ("main.py", HEAD + text + "\n"), "buffers": ("buffers.py", BUFFERS)}
    found = program_from_sources(sources).analyze()
    return [(each.detail, each.by_name) for each in found if each.kind == kind]


@pytest.mark.parametrize("text", WRONG_COUNTS)
def test_lists_for_other_ranks_than_those_of_the_group_are_found(text):
    ((message, by_name),) = details(text, "habit-argument")
    assert "one part for each rank" in message
    assert not by_name


def test_a_list_for_all_ranks_in_an_unknown_group_is_a_note():
    ((message, by_name),) = details(PERHAPS, "habit-argument")
    assert "use dist.get_world_size(group)" in message
    assert by_name


@pytest.mark.parametrize("text", FINE_COUNTS)
def test_lists_for_the_ranks_of_the_group_are_fine(text):
    assert details(text, "habit-argument") == []


@pytest.mark.parametrize("text", REPEATED)
def test_lists_of_one_tensor_are_found(text):
    ((message, _),) = details(text, "habit-result")
    assert "one tensor several times" in message


def test_lists_of_none_or_several_tensors_are_fine():
    text = "dist.all_gather(one_each(x, 8), x)\ndist.all_gather_object([None] * 8, 1)"
    assert details(text, "habit-result") == []


@pytest.mark.parametrize("text", WRONG_RANKS)
def test_lists_of_the_root_on_all_ranks_or_none_are_found(text):
    ((message, _),) = details(text, "habit-argument")
    assert "raises" in message


@pytest.mark.parametrize("text", [*FINE_RANKS, *FINE_SIZES])
def test_lists_of_the_root_and_sizes_that_fit_are_fine(text):
    assert details(text, "habit-argument") == []


@pytest.mark.parametrize("text", WRONG_SIZES)
def test_outputs_of_the_size_of_the_input_are_found(text):
    ((message, _),) = details(text, "habit-argument")
    assert "has the size of" in message
