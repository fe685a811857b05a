"""What a finding rests on decides whether it is shown, and a chain of tests is reported once."""

import textwrap

import pytest

from holdfast.core.findings import Level
from holdfast.lint.options import LintOptions
from holdfast.lint.run import lint_paths

HEAD = "import time, torch, torch.distributed as dist\n"
#: Functions that make a program large, in which instances share the attributes of their class.
MANY = "\n".join(f"def function_{at}(): return {at}" for at in range(301))
DEADLINE = """
class Trainer:
    def start(self):
        self.late = time.time() > 100
    def step(self, x):
        if self.late:
            dist.all_reduce(x)
"""
LENGTHS = """
class Trainer:
    def start(self, files):
        self.files = files[dist.get_rank() :: 4]
    def run(self, x):
        for file in self.files:
            dist.all_reduce(x)
"""
RANK = """
class Trainer:
    def start(self):
        self.is_main = dist.get_rank() == 0
    def step(self, x):
        if self.is_main:
            dist.all_reduce(x)
"""
CHAIN = """
def total(x):
    dist.all_reduce(x)
def train(x, y):
    bad = torch.isnan(x).any()
    if bad:
        total(x)
    if bad:
        total(y)
"""


def levels(folder, text, *, strict=False):
    """Return the levels of the findings."""
    path = folder / "program.py"
    path.write_text(HEAD + textwrap.dedent(text))
    found = lint_paths([path], LintOptions(strict=strict)).findings
    return [claim.finding.level for claim in found]


@pytest.mark.parametrize("program", [DEADLINE, LENGTHS])
def test_an_attribute_of_a_large_program_is_a_note_with_strict(program, tmp_path):
    assert levels(tmp_path, program) == [Level.WARNING]
    assert levels(tmp_path, program + MANY) == []
    assert levels(tmp_path, program + MANY, strict=True) == [Level.NOTE]


def test_an_attribute_that_holds_the_rank_is_an_error_in_any_program(tmp_path):
    assert levels(tmp_path, RANK) == levels(tmp_path, RANK + MANY) == [Level.ERROR]


def test_tests_of_the_same_data_are_reported_once(tmp_path):
    assert levels(tmp_path, CHAIN) == [Level.WARNING]
