"""In large programs only functions that reach a collective or a varying value are analyzed."""

import pytest

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
