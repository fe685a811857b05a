"""Of a large program those functions are run from which names lead to a collective, or to what differs over ranks."""

import pytest

from holdfast.facts.code import relevance
from holdfast.facts.code.programs import program

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
def found(monkeypatch):
    monkeypatch.setattr(relevance, "_SMALL", 0)
    return program({"comms": ("comms.py", COMMS), "main": ("main.py", MAIN)}).relevance


def names(functions):
    return sorted(f"{each.owner.name}.{each.name}" if each.owner else each.name for each in functions)


def test_what_leads_to_a_collective_is_run(found):
    expected = ["Base.round", "Ranked.share_all", "by_module", "by_receiver", "direct", "share"]
    assert names(found.enters) == expected


def test_what_may_answer_by_rank_is_run(found):
    assert names(found.differs) == ["asks"]
