"""Collectives that a rank skips if its batch gives parameters no gradient."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = "import torch\nimport torch.distributed as dist\n\n"
CLIP = """\
def clip(parameters, limit):
    grads = [p.grad for p in parameters if p.grad is not None]
    if {test}:
        return torch.tensor(0.0)
    total = sum(g.norm() ** 2 for g in grads)
    {call}
    return total.sqrt()
"""
AVERAGE = """\
class Averager:
    def __init__(self, parameters):
        self.parameters = list(parameters)

    def run(self):
        for p in self.parameters:
            {test}
                {body}
"""
STEP = """\
from averager import Averager

def step(model, states, labels):
    if (labels != -100).any():
        model(states).backward()
    Averager(model.parameters()).run()
"""
WHOLE = STEP.replace("if (labels != -100).any():", "if True:")
GUARDED = [
    ("if p.grad is not None:", "dist.all_reduce(p.grad)"),
    ("if p.grad is None:", "continue\n            dist.all_reduce(p.grad)"),
]


def details(text, step=""):
    sources = {"averager": ("averager.py", HEAD + text)}
    if step:
        sources["step"] = ("step.py", HEAD + step)
    found = program_from_sources(sources).analyze()
    return [each for each in found if each.kind == "habit-branch"]


@pytest.mark.parametrize("test", ["not grads", "len(grads) == 0"])
def test_a_return_without_gradients_before_a_collective_is_found(test):
    (found,) = details(CLIP.format(test=test, call="dist.all_reduce(total)"))
    assert found.location.line == 7
    assert "the others wait in all_reduce at line 9" in found.detail
    assert found.by_name


@pytest.mark.parametrize(
    ("test", "call"),
    [("not grads", "total += 1"), ("limit == 0", "dist.all_reduce(total)")],
)
def test_other_returns_are_fine(test, call):
    assert details(CLIP.format(test=test, call=call)) == []


@pytest.mark.parametrize(("test", "body"), GUARDED)
def test_a_test_of_each_gradient_is_found_where_a_batch_may_leave_out_backward(test, body):
    text = AVERAGE.format(test=test, body=body)
    (found,) = details(text, STEP)
    assert "fill in zeros" in found.detail
    assert details(text, WHOLE) == []
    (found,) = details(text, WHOLE + "    # find_unused_parameters=True\n")
    assert found.by_name


def test_gradients_that_are_filled_in_are_fine():
    body = "p.grad = torch.zeros_like(p)\n            dist.all_reduce(p.grad)"
    assert details(AVERAGE.format(test="if p.grad is None:", body=body), STEP) == []
