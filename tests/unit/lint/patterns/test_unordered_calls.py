"""Collectives in ``__del__`` and in signal handlers."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = "import signal\nimport torch\nimport torch.distributed as dist\nfrom ends import finish\n\n"
ENDS = "import torch.distributed as dist\n\ndef finish(total):\n    {}\n"
DELETED = """\
class Meter:
    def __init__(self, total):
        self.total = total

    def __del__(self):
        {}
"""
HANDLED = """\
def stop(number, frame):
    {}

def main():
    signal.signal(signal.{}, stop)
"""
CALLS = ["dist.all_reduce(self.total)", "finish(self.total)"]


def found(text, body="dist.barrier()"):
    sources = {"main": ("main.py", HEAD + text), "ends": ("ends.py", ENDS.format(body))}
    analyzed = program_from_sources(sources).analyze()
    return [each for each in analyzed if each.kind == "habit-thread"]


@pytest.mark.parametrize("call", CALLS)
def test_collectives_of_the_garbage_collector_are_found(call):
    (divergence,) = found(DELETED.format(call))
    assert divergence.location.line == 11
    assert "garbage collector" in divergence.detail


@pytest.mark.parametrize("call", ["dist.barrier()", "finish(1)"])
def test_collectives_of_signal_handlers_are_found(call):
    (divergence,) = found(HANDLED.format(call, "SIGTERM"))
    assert divergence.location.line == 7
    assert divergence.by_name


@pytest.mark.parametrize(
    "text",
    [
        DELETED.format("print(self.total)"),
        HANDLED.format("print(1)", "SIGTERM"),
        HANDLED.format("dist.barrier()", "SIGALRM"),  # limits of time are another rule
    ],
)
def test_other_functions_are_fine(text):
    assert found(text) == []


def test_a_helper_without_a_collective_is_fine():
    assert found(DELETED.format(CALLS[1]), "print(total)") == []
