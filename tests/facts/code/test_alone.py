"""Where a process is alone nothing differs: what is agreed where there are several is agreed."""

import ast
import textwrap

import pytest

from holdfast.facts.code.alone import several
from holdfast.facts.code.programs import program

HEAD = "import torch\nimport torch.distributed as dist\nimport elsewhere\n"
AGREED = {
    "under a test": """
        def train(distributed, batches):
            last = bool(torch.isnan(next(batches)))
            if distributed:
                flag = torch.tensor(last)
                dist.all_reduce(flag)
                last = bool(flag.item())
            if last:
                dist.barrier()
        """,
    "after the return of one that is alone": """
        def any_rank(flag):
            if not dist.is_available() or not dist.is_initialized():
                return flag
            told = torch.tensor(flag)
            dist.all_reduce(told)
            return bool(told.item())

        def train(batches):
            if any_rank(bool(torch.isnan(next(batches)))):
                dist.barrier()
        """,
    "before the return of one that is alone": """
        def any_rank(flag):
            if dist.get_world_size() > 1:
                told = torch.tensor(flag)
                dist.all_reduce(told)
                return bool(told.item())
            return flag

        def train(batches):
            if any_rank(bool(torch.isnan(next(batches)))):
                dist.barrier()
        """,
    "in a choice": """
        def agreed(told):
            dist.all_reduce(told)
            return told

        def train(self, batches):
            last = torch.isnan(next(batches))
            last = agreed(last) if self.world_size > 1 else last
            if last:
                dist.barrier()
        """,
}
LOCAL = {
    "agreed where something else is asked": """
        def train(noisy, batches):
            last = bool(torch.isnan(next(batches)))
            if noisy:
                flag = torch.tensor(last)
                dist.all_reduce(flag)
                last = bool(flag.item())
            if last:
                dist.barrier()
        """,
    "not agreed where there are several": """
        def train(distributed, batches):
            last = bool(torch.isnan(next(batches)))
            if not distributed:
                last = False
            if last:
                dist.barrier()
        """,
}


def found(text):
    """The kinds of partings, and their lines."""
    partings = program({"main": ("main.py", HEAD + textwrap.dedent(text))}).look()
    return [(each.kind, each.text) for each in partings]


@pytest.mark.parametrize("name", AGREED)
def test_it_is_agreed(name):
    assert found(AGREED[name]) == []


@pytest.mark.parametrize("name", LOCAL)
def test_it_is_each_ranks_own(name):
    assert found(LOCAL[name]) == [("branch", "if last")]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("dist.is_initialized()", True),
        ("not dist.is_available() or not dist.is_initialized()", False),
        ("dist.is_available() and dist.is_initialized() and get_world_size() > 1", True),
        ("args.world_size == 1", False),
        ("self.use_ddp", True),
        ("is_dist_avail_and_initialized()", True),
        ("self.initialized", None),
        ("world_size > 2", None),
        ("dist.is_initialized() or debug", None),
        ("distributed_sampler", None),
        ("group.size() > 1", None),
        ("is_distributed(model)", None),
    ],
)
def test_a_test_asks_whether_there_are_several_processes(text, answer):
    assert several(ast.parse(text, mode="eval").body) is answer
