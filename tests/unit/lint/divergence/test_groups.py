"""Groups with literal ranks, literal rank tests, and leaders on the default group."""

import pytest

from tests.unit.lint.programs import program_from_sources

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
    "if RANK > 5:\n    share(1, FIRST)",  # no member enters: torch warns and continues
    "if RANK == 0:\n    share(1, NODE)",  # members unknown
    "if LOCAL_RANK == 0:\n    share(1, PAIR)",
    "if RANK in 3:\n    share(1, PAIR)",
]


def analyze(text, kind):
    return [
        divergence
        for divergence in program_from_sources({"main": ("main.py", HEAD + text)}).analyze()
        if divergence.kind == kind
    ]


@pytest.mark.parametrize("text", LEFT_OUT)
def test_members_excluded_by_a_rank_test_are_found(text):
    (divergence,) = analyze(text, "members")
    assert divergence.op.name == "all_reduce"
    assert divergence.detail in ("0, 1", "0, 1, 2, 3")


@pytest.mark.parametrize("text", FINE)
def test_a_rank_test_that_all_or_no_members_pass_is_fine(text):
    assert analyze(text, "members") == []


def test_leaders_need_a_collective_of_their_node_first():
    outer = "if LOCAL_RANK == 0:\n    dist.all_reduce(1)"
    assert len(analyze("share(1, NODE)\n" + outer, "leaders")) == 1
    assert analyze(outer, "leaders") == []
    assert len(analyze(outer, "branch")) == 1
    assert (
        analyze(
            "share(1, NODE)\nif LOCAL_RANK == 0:\n    dist.all_reduce(1, group=PAIR)", "leaders"
        )
        == []
    )


@pytest.mark.parametrize(
    "text",
    [
        "first = dist.get_rank() // 8 * 8\ndist.new_group(list(range(first, first + 8)))",
        "if RANK < 4:\n    dist.new_group([0, 1, 2, 3])\nelse:\n    dist.new_group([4, 5, 6, 7])",
        "def f(low, high):\n  if RANK in low:\n    g = dist.new_group(low)\n  else:\n    g = dist.new_group(high)",
    ],
)
def test_groups_with_rank_dependent_members_are_found(text):
    (divergence,) = analyze(text, "ranks")
    assert divergence.sources


@pytest.mark.parametrize(
    "text",
    [
        "dist.new_group([RANK])",  # a group of one
        "first = dist.get_rank() // 8 * 8\ndist.new_group(range(first, first + 8), use_local_synchronization=True)",
        "for first in range(0, dist.get_world_size(), 8):\n    dist.new_group(list(range(first, first + 8)))",
        "if RANK < 4:\n    dist.new_group(members)\nelse:\n    dist.new_group(members)",
    ],
)
def test_equal_groups_and_groups_of_one_are_fine(text):
    assert analyze(text, "ranks") == []
