"""Messages to neighbours, results that only the root has, and lists of objects."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import torch
import torch.distributed as dist

"""
RINGS = {
    "no rank after the last": """\
def ring(x, buffer):
    rank = dist.get_rank()
    work = dist.isend(x, dst=rank + 1)
    dist.irecv(buffer, src=rank - 1).wait()
    work.wait()
""",
    "same neighbour": """\
def ring(x, buffer):
    rank, size = dist.get_rank(), dist.get_world_size()
    following = (rank + 1) % size
    ops = [dist.P2POp(dist.isend, x, following), dist.P2POp(dist.irecv, buffer, following)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
""",
}
FINE_RINGS = {
    "both neighbours": """\
def ring(x, buffer):
    rank, size = dist.get_rank(), dist.get_world_size()
    ops = [
        dist.P2POp(dist.isend, x, (rank + 1) % size),
        dist.P2POp(dist.irecv, buffer, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
""",
    "all but the last": """\
def pipe(x, buffer):
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.recv(buffer, src=rank - 1)
    if rank < size - 1:
        dist.send(x, dst=rank + 1)
""",
    "one direction": """\
class Stage:
    def __init__(self):
        self.rank = dist.get_rank()

    def forward(self, x):
        dist.send(x, self.rank + 1)

    def backward(self, x):
        dist.recv(x, self.rank + 1)
""",
    "partners": """\
def swap(x, buffer):
    partner = dist.get_rank() ^ 1
    ops = [dist.P2POp(dist.isend, x, partner), dist.P2POp(dist.irecv, buffer, partner)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
""",
}
SENDS = """\
def ring(x, buffer):
    rank, size = dist.get_rank(), dist.get_world_size()
    for _ in range(size - 1):
        dist.send(x, (rank + 1) % size)
        dist.recv(buffer, (rank - 1) % size)
"""
REDUCED = """\
def validate(model, loss, best):
    dist.reduce(loss, dst=0)
    if loss < best:
        dist.barrier()

def epoch(model, loss):
    validate(model, loss, 1.0)
"""
LOST = [
    (
        "def name():\n    text = read()\n    box = [text]\n    dist.broadcast_object_list(box)\n"
        "    return text"
    ),
    "def name(text):\n    dist.broadcast_object_list([text], src=0)\n    return text",
]
KEPT = [
    (
        "def name():\n    text = read()\n    box = [text]\n    dist.broadcast_object_list(box)\n"
        "    return box[0]"
    ),
    (
        "def name(text):\n    if dist.get_rank() == 0:\n        dist.broadcast_object_list([text])\n"
        "        return text\n    box = [None]\n    dist.broadcast_object_list(box)\n    return box[0]"
    ),
    "def name(texts):\n    dist.broadcast_object_list(texts, src=0)\n    return texts",
]


def details(text, kind):
    program = program_from_sources({"main": ("main.py", HEAD + text + "\n")})
    return [each.detail for each in program.analyze() if each.kind == kind]


@pytest.mark.parametrize("name", RINGS)
def test_neighbours_that_do_not_fit_are_found(name):
    messages = details(RINGS[name], "habit-peer")
    assert 1 <= len(messages) <= 2  # one for each line
    assert all("no rank" in each or "the other side" in each for each in messages)


@pytest.mark.parametrize("name", FINE_RINGS)
def test_neighbours_that_fit_are_fine(name):
    assert details(FINE_RINGS[name], "habit-peer") == []


def test_a_ring_in_a_loop_in_which_all_ranks_send_first_is_found():
    assert len(details(SENDS, "paired")) == 1
    received_first = SENDS.replace("dist.send(x", "dist.isend(x")
    assert details(received_first, "paired") == []


def test_only_the_root_has_the_result_of_a_reduce():
    assert len(details(REDUCED, "branch")) == 1
    assert (
        details(REDUCED.replace("dist.reduce(loss, dst=0)", "dist.all_reduce(loss)"), "branch")
        == []
    )


@pytest.mark.parametrize("text", LOST)
def test_objects_that_are_not_read_from_the_list_are_found(text):
    (message,) = details(text, "habit-result")
    assert "`text` is still the rank's own" in message


@pytest.mark.parametrize("text", KEPT)
def test_objects_that_are_read_from_the_list_are_fine(text):
    assert details(text, "habit-result") == []
