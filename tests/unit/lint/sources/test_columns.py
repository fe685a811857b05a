"""Findings state the column of the reported call, expression or statement."""

import json

import pytest

from holdfast.lint.run import lint_paths

HEAD = "import torch.distributed as dist\n\n\ndef synchronize():\n    dist.barrier()\n\n\n"


@pytest.mark.parametrize(
    ("statement", "column"),
    [
        ("if dist.get_rank() == 0: dist.barrier()", "dist.barrier"),
        ("if dist.get_rank() == 0: done = (1, dist.barrier())", "dist.barrier"),
        ("if dist.get_rank() == 0: print(len([]), synchronize())", "synchronize"),
        ("if dist.get_rank() == 0: print('é', dist.barrier())", "dist.barrier"),
        ("with open('x'):\n    if dist.get_rank() == 0:\n        dist.barrier()", "dist.barrier"),
        ("for _ in range(dist.get_rank()):\n    dist.barrier()", "for"),
    ],
)
def test_the_column_is_that_of_the_collective_or_of_the_statement(tmp_path, statement, column):
    path = tmp_path / "train.py"
    path.write_text(HEAD + statement + "\n")
    (found,) = lint_paths([path]).findings
    line = path.read_text().splitlines()[found.finding.subject.line - 1]
    assert line[found.column - 1 :].startswith(column)


def test_columns_in_notebooks_are_those_of_the_cell(tmp_path):
    path = tmp_path / "train.ipynb"
    sources = [HEAD, "%time\nif dist.get_rank() == 0: synchronize()"]
    cells = [{"cell_type": "code", "source": source} for source in sources]
    path.write_text(json.dumps({"cells": cells}))
    (found,) = lint_paths([path]).findings
    assert (found.finding.subject.line, found.column) == (2, 26)
