"""Async operations of a loop: handles that are overwritten, buffers that are reused."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = "import torch\nimport torch.distributed as dist\n\n"
OVERWRITTEN = """\
def average(params):
    for p in params:
        work = dist.all_reduce(p.grad, async_op=True)
    work.wait()
    for p in params:
        p.grad /= dist.get_world_size()
"""
REUSED = """\
def pump(batches, peer):
    buffer = torch.empty(8)
    works = []
    for batch in batches:
        buffer.copy_(batch)
        works.append(dist.isend(buffer, peer))
    for work in works:
        work.wait()
"""
FINE = {
    "awaited in the loop": OVERWRITTEN.replace("    work.wait()", "        work.wait()"),
    "kept in a list": OVERWRITTEN.replace("work = dist", "works = dist")
    .replace(
        "works = dist.all_reduce(p.grad, async_op=True)",
        "works.append(dist.all_reduce(p.grad, async_op=True))",
    )
    .replace("    work.wait()", "    for work in works:\n        work.wait()"),
    "a buffer for each": REUSED.replace("buffer.copy_(batch)", "buffer = batch.clone()"),
    "awaited before": REUSED.replace(
        "        buffer.copy_",
        "        while works:\n            works.pop().wait()\n        buffer.copy_",
    ),
    "unchanged": REUSED.replace("buffer.copy_(batch)", "print(batch)"),
}


def found(text):
    program = program_from_sources({"main": ("main.py", HEAD + text)})
    return [(each.kind, each.location.line) for each in program.analyze() if "handle" in each.kind]


def test_a_handle_that_the_next_round_overwrites_is_found():
    assert found(OVERWRITTEN) == [("handle", 6)]


def test_a_buffer_that_the_next_round_changes_is_found():
    assert found(REUSED) == [("handle-early", 8)]
    dropped = REUSED.replace("works.append(dist.isend(buffer, peer))", "dist.isend(buffer, peer)")
    assert ("handle-early", 8) in found(dropped)


@pytest.mark.parametrize("name", FINE)
def test_awaited_handles_and_own_buffers_are_fine(name):
    assert found(FINE[name]) == []
