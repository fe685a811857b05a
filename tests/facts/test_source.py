"""What the source says around a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.facts.ranks import Place
from holdfast.facts.source import Surroundings, surroundings
from holdfast.findings import Unknown
from holdfast.rules import places

PROGRAM = '''\
import torch.distributed as dist

def validate(model):
    score = model()
    dist.broadcast(score, 0)            # broadcast

def train(loader, rank, device):
    main = rank == 0
    for batch in loader:
        try:
            read(batch)
        except ValueError:
            continue
        dist.all_reduce(batch)          # loop
        if main and batch.step % 10 == 0:
            validate(batch)             # call
        if device == "cuda":
            dist.barrier()              # device
    dist.all_reduce(batch)              # after
    if rank != 0:
        return
    save(batch)                         # left
    while True:
        try:
            retry()                     # retry
        except OSError:
            raise
'''


@pytest.fixture
def at(tmp_path: Path):  # type: ignore[no-untyped-def]
    """The place of the line with a mark, in a file with the program."""
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)

    def find(mark: str) -> Place:
        line = next(n for n, text in enumerate(PROGRAM.splitlines(), 1) if text.endswith(f"# {mark}"))
        return Place(str(file), line)

    return find


def around(place: Place) -> Surroundings:
    """What is seen there, which must be known."""
    seen = surroundings(place)
    assert isinstance(seen, Surroundings)
    return seen


def source(*wanted: Place) -> dict[Place, Surroundings]:
    """The source around places and around what calls their functions."""
    found = {place: around(place) for place in wanted}
    for place in list(found):
        found |= {caller: around(caller) for caller in found[place].callers}
    return found


def test_function_loops_and_guards(at) -> None:  # type: ignore[no-untyped-def]
    seen = around(at("call"))
    assert seen.function == "train"
    assert [loop.header for loop in seen.loops] == ["for batch in loader:"]
    assert [(guard.text, guard.rank_dependent) for guard in seen.guards] == [("if main and batch.step % 10 == 0", True)]


def test_a_test_of_something_else_is_no_test_of_the_rank(at) -> None:  # type: ignore[no-untyped-def]
    assert [guard.rank_dependent for guard in around(at("device")).guards] == [False]
    assert places.rank_guard(at("device"), source(at("device"))) is None


def test_leaving_before_the_line_is_a_guard_too(at) -> None:  # type: ignore[no-untyped-def]
    (guard,) = around(at("left")).guards
    assert (guard.branch, guard.rank_dependent) == ("after", True)


def test_the_guard_may_stand_around_the_caller(at) -> None:  # type: ignore[no-untyped-def]
    guard = places.rank_guard(at("broadcast"), source(at("broadcast")))
    assert guard is not None
    assert guard.text.startswith("if main")


def test_after_the_loop(at) -> None:  # type: ignore[no-untyped-def]
    known = source(at("loop"), at("after"), at("call"))
    assert places.is_after_loop_of(at("after"), at("loop"), known)
    assert not places.is_after_loop_of(at("loop"), at("after"), known)
    assert not places.is_after_loop_of(at("call"), at("loop"), known)


def test_a_handler_that_goes_on_swallows(at) -> None:  # type: ignore[no-untyped-def]
    handler = places.loop_swallows(at("loop"), source(at("loop")))
    assert handler is not None
    assert handler.line == 12
    assert places.loop_swallows(at("retry"), source(at("retry"))) is None


@pytest.mark.parametrize("content", ["def broken(:\n", "\0", "x" * 10])
def test_what_cannot_be_read_is_unknown(tmp_path: Path, content: str) -> None:
    file = tmp_path / "odd.py"
    file.write_text(content)
    assert isinstance(surroundings(Place(str(file), 5)), Unknown)
    assert isinstance(surroundings(Place(str(tmp_path / "none.py"), 1)), Unknown)


def test_deep_nesting_does_not_break_the_reader(tmp_path: Path) -> None:
    file = tmp_path / "deep.py"
    file.write_text("x = " + "(" * 5000 + ")" * 5000)
    assert isinstance(surroundings(Place(str(file), 1)), Unknown)
