"""Groups of ranks given in numbers, tests of the rank in numbers, and leaders on the group of all."""

import pytest

from holdfast.facts.code.programs import program

HEAD = """\
import os
import torch.distributed as dist

RANK = int(os.environ["RANK"])
LOCAL_RANK = int(os.environ["LOCAL_RANK"])
PAIR = dist.new_group([0, 1])
FIRST = dist.new_group(ranks=list(range(4)))
NODE = dist.new_group(members)

def share(x, group):
    dist.all_reduce(x, group=group)

"""
LEFT_OUT = [
    "if dist.get_rank() == 0:\n    share(1, PAIR)",
    "if RANK in (0, 2, 4):\n    share(1, FIRST)",
    "if RANK >= 2:\n    print(1)\nelse:\n    share(1, FIRST)",
    "def main(x):\n    if RANK != 0:\n        return\n    share(x, FIRST)\nmain(1)",
]
FINE = [
    "if dist.get_rank() < 2:\n    share(1, PAIR)",
    "if RANK in (0, 1, 2, 3, 9):\n    share(1, FIRST)",
    "if RANK == 0:\n    share(1, FIRST)\nelse:\n    share(2, FIRST)",
    "if RANK > 5:\n    share(1, FIRST)",  # no member comes: torch warns and goes on
    "if RANK == 0:\n    share(1, NODE)",  # who is in it is not known
    "if LOCAL_RANK == 0:\n    share(1, PAIR)",
    "if RANK in 3:\n    share(1, PAIR)",
]


def found(text, kind):
    return [each for each in program({"main": ("main.py", HEAD + text)}).look() if each.kind == kind]


@pytest.mark.parametrize("text", LEFT_OUT)
def test_members_that_a_test_of_the_rank_keeps_away_are_missed(text):
    (parting,) = found(text, "members")
    assert parting.op.name == "all_reduce"
    assert parting.how in ("0, 1", "0, 1, 2, 3")


@pytest.mark.parametrize("text", FINE)
def test_a_test_that_all_members_or_none_pass_is_fine(text):
    assert found(text, "members") == []


def test_leaders_are_alone_on_the_group_of_all_ranks_only_after_one_of_their_node():
    outer = "if LOCAL_RANK == 0:\n    dist.all_reduce(1)"
    assert len(found("share(1, NODE)\n" + outer, "leaders")) == 1
    assert found(outer, "leaders") == []
    assert len(found(outer, "branch")) == 1
    assert found("share(1, NODE)\nif LOCAL_RANK == 0:\n    dist.all_reduce(1, group=PAIR)", "leaders") == []


@pytest.mark.parametrize(
    "text",
    [
        "first = dist.get_rank() // 8 * 8\ndist.new_group(list(range(first, first + 8)))",
        "if RANK < 4:\n    dist.new_group([0, 1, 2, 3])\nelse:\n    dist.new_group([4, 5, 6, 7])",
        "def f(low, high):\n  if RANK in low:\n    g = dist.new_group(low)\n  else:\n    g = dist.new_group(high)",
    ],
)
def test_a_group_that_each_rank_makes_of_others_is_found(text):
    (parting,) = found(text, "ranks")
    assert parting.sources


@pytest.mark.parametrize(
    "text",
    [
        "dist.new_group([RANK])",  # alone: nobody is waited for
        "first = dist.get_rank() // 8 * 8\ndist.new_group(range(first, first + 8), use_local_synchronization=True)",
        "for first in range(0, dist.get_world_size(), 8):\n    dist.new_group(list(range(first, first + 8)))",
        "if RANK < 4:\n    dist.new_group(members)\nelse:\n    dist.new_group(members)",
    ],
)
def test_the_same_groups_on_all_ranks_and_groups_of_one_are_fine(text):
    assert found(text, "ranks") == []
