"""What a function did is kept from round to round, and forgotten where something that it read has changed."""

from pathlib import Path

import pytest

from holdfast.facts.code import reading
from holdfast.facts.code.memory import Memory
from holdfast.facts.code.programs import Program, program

CASES = Path(__file__).parents[2] / "lint_cases" / "cases"
LATE = """import torch.distributed as dist
class Trainer:
    def __init__(self):
        self.quiet = 1
    def step(self):
        if self.main:
            dist.barrier()
        self.aside()
    def aside(self):
        return 1
    def late(self):
        self.main = dist.get_rank() == 0
trainer = Trainer()
trainer.step()
trainer.late()
"""


def counted(text, monkeypatch):
    """How often each function ran in each round, and the partings."""
    rounds = []
    begin, run = Memory.begin, Memory.run

    def counting_begin(memory):
        rounds.append([])
        begin(memory)

    def counting_run(memory, key, function):
        rounds[-1].append(function.name)
        return run(memory, key, function)

    monkeypatch.setattr(Memory, "begin", counting_begin)
    monkeypatch.setattr(Memory, "run", counting_run)
    return rounds, program({"main": ("main.py", text)}).look()


def test_only_what_read_something_that_changed_is_run_again(monkeypatch):
    rounds, partings = counted(LATE, monkeypatch)
    assert rounds[0].count("aside") == 1
    assert rounds[1] == ["step"]
    assert [(each.kind, each.place.line) for each in partings] == [("branch", 7)]


def test_where_nothing_changed_that_was_read_there_is_one_round(monkeypatch):
    rounds, partings = counted(
        LATE.replace("trainer.step()\ntrainer.late()", "trainer.late()\ntrainer.step()"), monkeypatch
    )
    assert len(rounds) == 1
    assert [(each.kind, each.place.line) for each in partings] == [("branch", 7)]


def test_who_calls_a_function_that_changed_is_run_again_too(monkeypatch):
    text = LATE.replace("        if self.main:\n", "        if self.asked():\n").replace(
        "    def aside", "    def asked(self):\n        return self.main\n    def aside"
    )
    rounds, partings = counted(text, monkeypatch)
    assert sorted(rounds[1]) == ["asked", "step"]
    assert [(each.kind, each.place.line) for each in partings] == [("branch", 7)]


def test_what_was_found_with_what_was_known_too_early_is_not_said(monkeypatch):
    text = """import torch.distributed as dist
def main_only(flag):
    if flag:
        dist.barrier()
class State:
    def use(self):
        main_only(self.flag)
    def agreed(self):
        self.flag = True
State().use()
State().agreed()
"""
    assert counted(text, monkeypatch)[1] == []


@pytest.mark.parametrize("case", sorted(path.name for path in CASES.iterdir()))
def test_it_finds_what_running_all_again_finds(case, monkeypatch):
    def found():
        sources = reading.read([CASES / case])
        return {(each.kind, each.place) for each in Program(sources.modules).look()}

    kept = found()
    begin = Memory.begin

    def forgetful(memory):
        memory._stale.update(memory._runs.values())
        begin(memory)

    monkeypatch.setattr(Memory, "begin", forgetful)
    assert found() == kept
