"""The line that let a rank leave a loop, from the source around the calls on both sides."""

from __future__ import annotations

import textwrap

import pytest

from holdfast.core.rank_table import RecordedCall, SourceLine
from holdfast.watcher.rules.call_sites import left_loop_line
from holdfast.watcher.source_context import SourceContext, read_source_context


def left_line(tmp_path, program, *, ended=False):
    """Return the text of the line; calls are marked # USUAL and # ODD, callers # CALLER."""
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(program))
    lines = path.read_text().splitlines()
    places = {
        mark: SourceLine(str(path), number, "f")
        for number, text in enumerate(lines, 1)
        for mark in ("USUAL", "ODD", "CALLER")
        if text.endswith(f"# {mark}")
    }
    source = {
        place: context
        for place in places.values()
        if isinstance(context := read_source_context(place), SourceContext)
    }
    usual = RecordedCall("0", 9, "all_reduce", site=places["USUAL"], caller=places.get("CALLER"))
    odd = None if ended else RecordedCall("0", 9, "barrier", site=places["ODD"])
    line = left_loop_line(usual, odd, source)
    return line and lines[line.line - 1].strip()


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (
            """
            for epoch in range(12):
                for batch in loader:
                    step(batch)  # USUAL
                if stopper.step(loss):
                    break
            barrier()  # ODD
            """,
            "break",
        ),
        (
            """
            for epoch in range(begin, 9):
                for _ in range(15):
                    step()  # USUAL
            reduce()  # ODD
            """,
            "for epoch in range(begin, 9):",
        ),
        (
            """
            for epoch in range(epochs):
                for batch in loader:
                    step(batch)  # USUAL
                reduce()  # ODD
            """,
            "for batch in loader:",
        ),
        (
            """
            def train():
                for batch in loader:
                    step(batch)  # USUAL

            def main():
                train()  # CALLER
                barrier()  # ODD
            """,
            "for batch in loader:",
        ),
        (
            """
            while True:
                if done():
                    break
                if other():
                    break
                step()  # USUAL
            barrier()  # ODD
            """,
            "while True:",
        ),
        ("step()  # USUAL\nbarrier()  # ODD\n", None),
    ],
)
def test_the_line_is_found(tmp_path, program, expected):
    assert left_line(tmp_path, program) == expected


def test_a_rank_that_ended_has_left_all_loops(tmp_path):
    program = """
    for epoch in range(1):
        for it, batch in enumerate(loader):
            step(batch)  # USUAL
    """
    assert left_line(tmp_path, program, ended=True) == "for it, batch in enumerate(loader):"
