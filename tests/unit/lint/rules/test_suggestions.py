"""Suggestions follow the shape of the code, and their diff solves the problem."""

import pytest

from benchmarks.unified_patches import apply_hunks
from holdfast.lint.run import lint_paths

HEAD = "import torch.distributed as dist\n\n\ndef train(loss, value):\n"
SHAPES = {
    "last": (
        "if dist.get_rank() == 0:\n        print(loss)\n        dist.barrier()\n    print(value)",
        "Move `dist.barrier()` behind `if dist.get_rank() == 0`",
        "if dist.get_rank() == 0:\n        print(loss)\n    dist.barrier()\n    print(value)",
    ),
    "alone": (
        "if dist.get_rank() == 0:\n        dist.broadcast(\n            value, src=0\n        )",
        "remove `if dist.get_rank() == 0`",
        "dist.broadcast(\n        value, src=0\n    )",
    ),
    "first": (
        "if dist.get_rank() == 0:\n        dist.all_reduce(loss)\n        print(loss)",
        "Move `dist.all_reduce(loss)` before `if dist.get_rank() == 0`",
        "dist.all_reduce(loss)\n    if dist.get_rank() == 0:\n        print(loss)",
    ),
}


def lint(folder, body):
    path = folder / "train.py"
    path.write_text(f"{HEAD}    {body}\n")
    return path, lint_paths([path]).findings


@pytest.mark.parametrize("shape", SHAPES)
def test_the_diff_lets_all_ranks_enter_the_collective(tmp_path, shape):
    before, text, after = SHAPES[shape]
    path, (found,) = lint(tmp_path, before)
    assert text in found.suggestion.text
    patched = apply_hunks(path.read_text(), list(found.suggestion.diff[2:]))
    _, findings = lint(tmp_path, after)
    assert patched == path.read_text()
    assert not findings


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            "if dist.get_rank() == 0:\n        value = open(value)\n        dist.all_reduce(value)\n        print(value)",
            "Let all ranks call `dist.all_reduce(value)`: move it, and what computes its arguments",
        ),
        (
            "if dist.get_rank() == 0:\n        loss = dist.all_reduce(loss)\n    else:\n        loss = None",
            "Let all ranks call `loss = dist.all_reduce(loss)`: move it",
        ),
        ("if value:\n        pass\n    elif dist.get_rank() == 0:\n        dist.barrier()", None),
        ("if dist.get_rank() == 0: dist.barrier()", None),
        ("for _ in range(dist.get_rank()):\n        dist.barrier()", None),
        ("if dist.get_rank() == 0:\n        with open(value):\n            dist.barrier()", None),
    ],
)
def test_other_shapes_have_no_diff(tmp_path, body, text):
    _, (found,) = lint(tmp_path, body)
    if text is None:
        assert found.suggestion is None
    else:
        assert found.suggestion.text.startswith(text)
        assert not found.suggestion.diff
