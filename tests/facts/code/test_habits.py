"""What looks like a bad habit and is none: nothing is said of it."""

import pytest

from holdfast.facts.code.programs import program

FINE = {
    "what was just written by the same function": """
import torch
def twice(x, path):
    torch.save(x, path)
    return torch.load(path, weights_only=False)
""",
    "a value that is given by the caller": """
import torch
def load(path, trusted):
    return torch.load(path, weights_only=not trusted)
""",
    "another library's load": """
import torch, joblib
def load(path):
    return joblib.load(path, weights_only=False)
""",
}


@pytest.mark.parametrize("text", FINE.values(), ids=FINE)
def test_nothing_is_said(text):
    assert [(each.kind, each.place.line) for each in program({"main": ("main.py", text)}).look()] == []
