"""In a single process nothing differs, so its values count as agreed."""

import ast
import textwrap

import pytest

from holdfast.lint.divergence.single_process import checks_multiple_processes
from tests.unit.lint.programs import program_from_sources

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
    "after the return of a single process": """
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
    "before the return of a single process": """
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
    "in a conditional expression": """
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
    "agreed under another test": """
        def train(noisy, batches):
            last = bool(torch.isnan(next(batches)))
            if noisy:
                flag = torch.tensor(last)
                dist.all_reduce(flag)
                last = bool(flag.item())
            if last:
                dist.barrier()
        """,
    "not agreed for several processes": """
        def train(distributed, batches):
            last = bool(torch.isnan(next(batches)))
            if not distributed:
                last = False
            if last:
                dist.barrier()
        """,
}


def analyze(text):
    """Return the kinds of divergences with their lines."""
    divergences = program_from_sources(
        {"main": ("main.py", HEAD + textwrap.dedent(text))}
    ).analyze()
    return [(divergence.kind, divergence.text) for divergence in divergences]


@pytest.mark.parametrize("name", AGREED)
def test_a_single_process_keeps_values_agreed(name):
    assert analyze(AGREED[name]) == []


@pytest.mark.parametrize("name", LOCAL)
def test_rank_local_values_stay_rank_local(name):
    assert analyze(LOCAL[name]) == [("branch", "if last")]


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
def test_multi_process_tests_are_recognized(text, answer):
    assert checks_multiple_processes(ast.parse(text, mode="eval").body) is answer
