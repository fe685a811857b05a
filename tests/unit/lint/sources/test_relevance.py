"""In large programs only functions that reach a collective or a varying value are analyzed."""

import pytest

from holdfast.lint.interpreter.programs import Program
from holdfast.lint.sources import relevance
from holdfast.lint.sources.modules import SymbolTable
from tests.unit.lint.programs import modules_from_sources

COMMS = """
import torch.distributed as dist

def share(value):
    dist.broadcast(value, 0)

class Base:
    def round(self):
        self.share_all()

    def share_all(self):
        pass

class Ranked(Base):
    def share_all(self):
        dist.all_reduce(1)
"""
MAIN = """
import comms
from comms import share as give
from comms import Ranked

def direct():
    give(1)

def by_module():
    comms.share(1)

def by_receiver(anything):
    anything.share_all()

def makes():
    return Ranked()

def asks():
    return os.environ["RANK"]

def share(value):
    return value

def unrelated():
    share(2)
"""


@pytest.fixture
def relevance_analysis(monkeypatch):
    monkeypatch.setattr(relevance, "_SMALL_PROGRAM", 0)
    modules = modules_from_sources({"comms": ("comms.py", COMMS), "main": ("main.py", MAIN)})
    return relevance.Relevance(SymbolTable(modules))


def names(functions):
    return sorted(
        f"{function.owner.name}.{function.name}" if function.owner else function.name
        for function in functions
    )


def test_functions_that_reach_a_collective_are_relevant(relevance_analysis):
    expected = ["Base.round", "Ranked.share_all", "by_module", "by_receiver", "direct", "share"]
    assert names(relevance_analysis.entering_functions) == expected


def test_functions_that_may_depend_on_the_rank_are_relevant(relevance_analysis):
    assert names(relevance_analysis.varying_functions) == ["asks"]


TYPED = """
import torch.distributed as dist
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Protocol

class Ranks:
    def sync_all(self):
        dist.all_reduce(1)

    def position(self):
        dist.barrier()

class Local:
    def sync_all(self):
        pass

class Wide(Local):
    def sync_all(self):
        dist.barrier()

class Syncs(Protocol):
    def sync_all(self): ...

@dataclass
class Holder:
    alone: "Alone"
    ranks: Optional[Ranks] = None

class Keeps:
    def __init__(self, holder: Holder):
        self.holder = holder

    def by_attribute(self):
        self.holder.ranks.sync_all()

    def by_missing_method(self):
        self.position()

class Alone:
    def position(self):
        pass

class Parts:
    def split(self):
        dist.barrier()
"""


def entering(monkeypatch, code):
    monkeypatch.setattr(relevance, "_SMALL_PROGRAM", 0)
    modules = modules_from_sources({"main": ("main.py", TYPED + code)})
    found = relevance.Relevance(SymbolTable(modules)).entering_functions
    return {function.name for function in found if function.name.startswith("use")}


@pytest.mark.parametrize(
    "code",
    [
        "def use(ranks: Ranks):\n    ranks.sync_all()",
        "def use(ranks: 'Ranks | None'):\n    ranks.sync_all()",
        "def use(local: Local):\n    local.sync_all()  # a subclass overrides it",
        "def use(any_one: Any):\n    any_one.sync_all()",
        "def use(any_one: Syncs):\n    any_one.sync_all()",
        "def use(any_one):\n    any_one.sync_all()",
        "def use():\n    ranks = Ranks()\n    ranks.sync_all()",
        "def make() -> Ranks:\n    return Ranks()\ndef use():\n    made = make()\n    made.sync_all()",
        "def use(keeps: Keeps):\n    keeps.holder.ranks.sync_all()",
        "def use(keeps: Keeps):\n    keeps.by_missing_method()",
        "def use(path: Path, ranks):\n    for path in ranks:\n        path.sync_all()",
        "def use(path: Path):\n    path = Ranks()\n    path.sync_all()",
        "def use(any_one):\n    return any_one.position()",
        "def use():\n    # first\n    dist.barrier()  # all ranks",
        "def use():\n    print('#', dist.barrier())",
        "def use(parts: Parts):\n    parts.split()",
        "def use(model):\n    import deepspeed\n    return deepspeed.initialize(model=model)",
    ],
)
def test_methods_that_a_receiver_may_have_are_followed(monkeypatch, code):
    assert entering(monkeypatch, code) == {"use"}


@pytest.mark.parametrize(
    "code",
    [
        "def use(path: Path):\n    path.sync_all()",
        "def use(count: int | None):\n    count.sync_all()",
        "def use(holder: Holder):\n    holder.alone.position()",
        "def use(any_one):\n    return any_one.position  # is not called",
        "def use(any_one):\n    any_one.split()  # a method of text",
        "def use():\n    '''Use ``dist.barrier``.'''",
        "def use():\n    # dist.barrier()\n    return 1  # dist.barrier()",
    ],
)
def test_methods_that_a_receiver_cannot_have_are_not_followed(monkeypatch, code):
    assert entering(monkeypatch, code) == set()


def test_only_relevant_functions_run_in_a_large_program(monkeypatch):
    monkeypatch.setattr(relevance, "_SMALL_PROGRAM", 0)
    code = """
import torch.distributed as dist

def use(value):
    checked(value)
    formatted(value)
    dist.barrier()

def checked(value):
    if value:
        raise ValueError

def formatted(value):
    return str(value)

def unused(value):
    raise ValueError
"""
    modules = modules_from_sources({"main": ("main.py", code)})
    Program(modules).analyze()
    assert {each.name for each in modules["main"].functions() if each.run_count} == {
        "use",
        "checked",
    }
