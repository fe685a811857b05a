"""Time limits around collectives, in every form in which they are set and caught."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import signal
import torch.distributed as dist
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from contextlib import contextmanager

class Late(Exception): ...

def late(signum, frame):
    raise Late("too long")

signal.signal(signal.SIGALRM, late)

@contextmanager
def limit(seconds):
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)

@contextmanager
def soft(seconds):
    signal.alarm(seconds)
    try:
        yield
    except Late:
        print("late")

class Limit:
    def __enter__(self):
        signal.setitimer(signal.ITIMER_REAL, 3)

    def __exit__(self, *exception):
        signal.setitimer(signal.ITIMER_REAL, 0)

def timed(function):
    def inner(x):
        signal.alarm(3)
        try:
            return function(x)
        except Late:
            return None
    return inner

def gather(x):
    dist.all_reduce(x)

"""
CAUGHT = {
    "a generator": "try:\n    with limit(3):\n        gather(1)  # here\nexcept Late:\n    pass",
    "a generator that catches": "with soft(3):\n    gather(1)  # here",
    "a class": "try:\n    with Limit():\n        gather(1)  # here\nexcept Exception:\n    pass",
    "a decorator": "@timed\ndef evaluate(x):\n    gather(x)  # here\n\nevaluate(1)",
    "a pool": "work = ThreadPoolExecutor().submit(gather, 1)  # here\ntry:\n    work.result(timeout=3)\n"
    "except TimeoutError:\n    pass",
}
FINE = {
    "uncaught": "with limit(3):\n    gather(1)",
    "reraised": "try:\n    with limit(3):\n        gather(1)\nexcept Late:\n    raise",
    "another exception": "try:\n    with limit(3):\n        gather(1)\nexcept KeyError:\n    pass",
    "cleared before": "try:\n    with limit(3):\n        print(1)\n    gather(1)\nexcept Late:\n    pass",
    "no limit": "work = ThreadPoolExecutor().submit(gather, 1)\ntry:\n    work.result()\nexcept Exception:\n    pass",
}


def analyze(text):
    divergences = program_from_sources({"main": ("main.py", HEAD + text)}).analyze()
    return [divergence.location.line for divergence in divergences if divergence.kind == "alarm"]


@pytest.mark.parametrize("name", CAUGHT)
def test_a_caught_time_limit_is_reported_at_the_collective(name):
    text = HEAD + CAUGHT[name]
    assert analyze(CAUGHT[name]) == [text[: text.index("# here")].count("\n") + 1]


@pytest.mark.parametrize("name", FINE)
def test_a_time_limit_that_all_ranks_share_is_fine(name):
    assert analyze(FINE[name]) == []
