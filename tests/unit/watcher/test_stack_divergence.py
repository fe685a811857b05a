"""A rank that left a loop of a library's trainer, from its stack and that of a rank inside."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from holdfast.core.rank_table import RaisedException, SourceLine, ThreadStack
from holdfast.watcher.rules import hang
from holdfast.watcher.rules.stack_divergence import compared_frames, left_loop_at
from holdfast.watcher.source_context import read_source_context
from tests.unit.watcher.rank_tables import TRAIN, call, history, row, world

TRAINER = """
    def fit():
        for epoch in range(3):
            shuffle()  # next epoch
            train()  # inside
            validate()  # after
        save()  # end
    def train():
        for batch in loader:
            step(batch)  # batch
        log()  # logs
    def step(batch):
        if batch.sum():
            reduce()  # reduces
        gather()  # gathers
"""


@dataclass(frozen=True)
class Library:
    """Frames by the comment of their line, and the source around them."""

    frames: dict[str, SourceLine]

    def stack(self, *marks: str) -> tuple[SourceLine, ...]:
        """Return these frames, innermost first, below the script's."""
        return (*(self.frames[mark] for mark in marks), TRAIN)

    @property
    def source(self):
        """The source around every line."""
        return {frame: read_source_context(frame) for frame in self.frames.values()}


@pytest.fixture
def library(tmp_path):
    path = tmp_path / "site-packages" / "trainer.py"
    path.parent.mkdir()
    path.write_text(textwrap.dedent(TRAINER))
    frames, function = {}, ""
    for number, text in enumerate(path.read_text().splitlines(), 1):
        function = text[4:].partition("(")[0] if text.startswith("def") else function
        if "#" in text:
            frames[text.partition("# ")[2]] = SourceLine(str(path), number, function)
    return Library(frames)


INSIDE = ("reduces", "batch", "inside")


@pytest.mark.parametrize(
    ("left", "still", "expected"),
    [
        (("after",), INSIDE, "inside"),
        (("end",), INSIDE, "inside"),
        (("next epoch",), INSIDE, None),  # it may not have entered the loop yet
        (("logs", "inside"), INSIDE, "batch"),
        (("gathers", "batch", "inside"), INSIDE, None),  # the same iteration
        (("reduces", "batch", "inside"), INSIDE, None),
        (("after",), ("next epoch",), None),
        ((), INSIDE, None),
    ],
)
def test_the_common_function_shows_which_rank_left_the_loop(library, left, still, expected):
    found = left_loop_at(library.stack(*left), library.stack(*still), library.source)
    assert found == (library.frames[expected] if expected else None)


def states(library, odd_rank, *, raised=False):
    """Return three ranks in call 31; one has left the loop of the others."""

    def state(rank):
        marks = ("after",) if rank == odd_rank else INSIDE
        own = call(31, "barrier") if rank == odd_rank else call(31)
        found = row(rank, *history(30), own)
        frames = library.stack(*marks)
        if raised:
            error = RaisedException("RuntimeError", "Connection reset by peer", frames=frames)
            return replace(found, raised=error)
        return replace(found, stacks=(ThreadStack(frames),))

    return [state(rank) for rank in range(3)]


@pytest.mark.parametrize("raised", [False, True])
def test_an_uneven_end_of_data_in_a_library_is_no_mismatch(library, raised):
    ranks = states(library, 1, raised=raised)
    assert compared_frames(ranks) == {*library.stack(*INSIDE), *library.stack("after")}
    verdict = hang.judge_hang(ranks, world(3), world_size=3, source=library.source)
    assert (verdict.root.cause, verdict.root.subject.rank) == ("uneven-inputs", 1)
    assert "rank 1 left the loop first at trainer.py:5" in verdict.root.message


def test_a_rank_with_more_data_is_named_if_the_others_left_the_loop(library):
    ranks = states(library, 1)
    ranks = [replace(state, rank=1 - min(state.rank, 1)) for state in ranks[:2]]
    others = replace(next(state for state in ranks if "barrier" in str(state.pending)), rank=2)
    verdict = hang.judge_hang([*ranks, others], world(3), world_size=3, source=library.source)
    assert (verdict.root.cause, verdict.root.subject.rank) == ("uneven-inputs", 1)
    assert "rank 1 is still in the loop at trainer.py:5" in verdict.root.message


def test_a_rank_that_went_on_since_the_divergence_is_not_compared(library):
    ranks = [
        replace(state, recent=(*state.recent, call(40, "barrier")), pending=())
        if state.rank == 1
        else state
        for state in states(library, 1)
    ]
    verdict = hang.judge_hang(ranks, world(3), world_size=3, source=library.source)
    assert verdict.root.cause == "mismatched-operation"
