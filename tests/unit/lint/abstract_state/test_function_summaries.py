"""Summaries are kept over rounds and dropped when an input changes."""

import json
from pathlib import Path

import pytest

from benchmarks.lint_cases import fixed_files
from holdfast.lint.abstract_state.function_summaries import SummaryCache
from holdfast.lint.interpreter.programs import Program
from holdfast.lint.sources import files
from tests.unit.lint.programs import program_from_sources

CASES = Path(__file__).parents[3] / "faults" / "lint_cases" / "cases"
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
    """Return the functions run in each round, and the divergences."""
    rounds = []
    begin, run = SummaryCache.start_round, SummaryCache.run

    def counting_begin(memory):
        rounds.append([])
        begin(memory)

    def counting_run(memory, key, function, again):
        rounds[-1].append(function.name)
        return run(memory, key, function, again)

    monkeypatch.setattr(SummaryCache, "start_round", counting_begin)
    monkeypatch.setattr(SummaryCache, "run", counting_run)
    return rounds, program_from_sources({"main": ("main.py", text)}).analyze()


def test_only_runs_with_changed_inputs_repeat(monkeypatch):
    rounds, divergences = counted(LATE, monkeypatch)
    assert rounds[0].count("aside") == 1
    assert rounds[1] == ["step"]
    assert [(divergence.kind, divergence.location.line) for divergence in divergences] == [
        ("branch", 7)
    ]


def test_unchanged_inputs_need_one_round(monkeypatch):
    rounds, divergences = counted(
        LATE.replace("trainer.step()\ntrainer.late()", "trainer.late()\ntrainer.step()"),
        monkeypatch,
    )
    assert len(rounds) == 1
    assert [(divergence.kind, divergence.location.line) for divergence in divergences] == [
        ("branch", 7)
    ]


def test_callers_of_a_changed_function_repeat(monkeypatch):
    text = LATE.replace("        if self.main:\n", "        if self.asked():\n").replace(
        "    def aside", "    def asked(self):\n        return self.main\n    def aside"
    )
    rounds, divergences = counted(text, monkeypatch)
    assert sorted(rounds[1]) == ["asked", "step"]
    assert [(divergence.kind, divergence.location.line) for divergence in divergences] == [
        ("branch", 7)
    ]


def test_divergences_from_outdated_inputs_are_dropped(monkeypatch):
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


FACTS = """import torch.distributed as dist
GROUP = None
def plain(value):
    return value + 1
def tests():
    return GROUP is None
def work():
    global GROUP
    GROUP = None
    plain(1)
    tests()
    GROUP = dist.new_group([0, 1])
    plain(1)
    tests()
work()
"""


def test_calls_share_a_run_unless_it_uses_what_differs(monkeypatch):
    rounds, _ = counted(FACTS, monkeypatch)
    assert (rounds[0].count("plain"), rounds[0].count("tests")) == (1, 2)


def test_calls_in_a_block_that_creates_something_share_runs(monkeypatch):
    text = """import torch.distributed as dist
def plain(value):
    return value + 1
class Store:
    def __init__(self):
        self.held = None
    def fill(self):
        self.held = plain(1)
    def get(self):
        plain(1)
        self.fill()
        if self.held is None:
            plain(1)
            self.fill()
Store().get()
"""
    rounds, _ = counted(text, monkeypatch)
    assert (rounds[0].count("plain"), rounds[0].count("fill")) == (1, 2)


def test_a_shared_run_keeps_the_facts_of_each_call(monkeypatch):
    text = """import torch.distributed as dist
MODE = None
def plain(value):
    return value + 1
def work():
    global MODE
    MODE = None
    plain(1)
    MODE = True
    plain(1)
    if MODE is None:
        if dist.get_rank() == 0:
            dist.barrier()
work()
"""
    rounds, divergences = counted(text, monkeypatch)
    assert rounds[0].count("plain") == 1
    assert all(source.by_name for divergence in divergences for source in divergence.sources)


@pytest.mark.parametrize("case", sorted(path.name for path in CASES.iterdir()))
def test_caching_finds_the_same_as_full_reruns(case, monkeypatch):
    folder = CASES / case
    fixed = fixed_files(folder, json.loads((folder / "case.json").read_text()))

    def analyze():
        sources = files.read_sources([folder, *fixed], unsaved=fixed)
        return {
            (divergence.kind, divergence.location)
            for divergence in Program(sources.modules).analyze()
        }

    expected = analyze()
    begin = SummaryCache.start_round

    def forgetful(memory):
        memory._outdated.update(memory._runs.values())
        begin(memory)

    monkeypatch.setattr(SummaryCache, "start_round", forgetful)
    assert analyze() == expected
