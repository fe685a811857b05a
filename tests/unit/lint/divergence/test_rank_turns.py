"""Main-process-first patterns: other ranks wait before its work, and it waits afterwards."""

import textwrap

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = "import torch.distributed as dist\nfrom contextlib import contextmanager\nimport elsewhere\n"
TURNS = {
    "in a guarded block of a context manager": """
        @contextmanager
        def main_first():
            rank = dist.get_rank()
            try:
                if rank > 0:
                    dist.barrier()
                yield
            finally:
                if rank == 0:
                    dist.barrier()

        with main_first():
            elsewhere.tokenize()
        """,
    "through a method, with a flag": """
        class State:
            def wait(self):
                dist.barrier()

            def turns(self, first):
                if not first:
                    self.wait()
                yield
                if first:
                    self.wait()

        for _ in State().turns(dist.get_rank() == 0):
            elsewhere.tokenize()
        """,
    "under one more test": """
        def load(cached):
            rank = dist.get_rank()
            if rank not in [-1, 0] and not cached:
                dist.barrier()
            elsewhere.tokenize()
            if rank == 0 and not cached:
                dist.barrier()
        """,
    "behind an assertion of the rank": """
        class Data:
            def __init__(self, path):
                if dist.get_rank() != 0:
                    dist.barrier()
                if elsewhere.exists(path):
                    data = elsewhere.load(path)
                    if dist.get_rank() == 0:
                        dist.barrier()
                else:
                    assert dist.get_rank() == 0, "only the first rank prepares"
                    data = elsewhere.prepare(path)
                    dist.barrier()
                self.data = data
        """,
    "in a later branch of a test that all answer alike": """
        def load(path):
            rank = dist.get_rank()
            if rank != 0:
                dist.barrier()
            if elsewhere.exists(path):
                if rank == 0:
                    dist.barrier()
            else:
                elsewhere.prepare(path)
                if rank == 0:
                    dist.barrier()
        """,
}
NO_TURNS = {
    "only where a file exists": """
        def load(path):
            if dist.get_rank() != 0:
                dist.barrier()
            if elsewhere.exists(path):
                if dist.get_rank() == 0:
                    dist.barrier()
        """,
    "the same ranks twice": """
        def load():
            if dist.get_rank() != 0:
                dist.barrier()
            if dist.get_rank() > 0:
                dist.barrier()
        """,
    "not under the same other test": """
        def load(cached, told):
            if dist.get_rank() != 0 and cached:
                dist.barrier()
            if dist.get_rank() == 0 and told:
                dist.barrier()
        """,
    "twice, and once": """
        def load():
            if dist.get_rank() != 0:
                dist.barrier()
                dist.barrier()
            if dist.get_rank() == 0:
                dist.barrier()
        """,
}


def analyze(text):
    """Return the kinds of divergences."""
    return {
        divergence.kind
        for divergence in program_from_sources(
            {"main": ("main.py", HEAD + textwrap.dedent(text))}
        ).analyze()
    }


@pytest.mark.parametrize("name", TURNS)
def test_ranks_take_turns(name):
    assert analyze(TURNS[name]) == set()


@pytest.mark.parametrize("name", NO_TURNS)
def test_ranks_do_not_take_turns(name):
    assert analyze(NO_TURNS[name]) == {"branch"}
