"""The names that a module calls, by its text."""

from holdfast.lint.patterns.by_name.called_names import CalledNames
from tests.unit.lint.programs import modules_from_sources

TEXT = """import torch.distributed as dist

def step(model):
    dist.barrier()
    model.all_reduce (
        size(1)
    )
step(1)
"""


def test_names_before_a_parenthesis_have_their_lines():
    called = CalledNames(modules_from_sources({"main": ("main.py", TEXT)})["main"])
    assert sorted(called.names) == ["barrier", "size", "step"]
    assert (called.lines_of("step"), called.lines_of("all_reduce")) == ([3, 8], [])
    assert called.within(4, 5) == {"barrier", "all_reduce"}
