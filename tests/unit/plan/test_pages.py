"""The Python blocks of the planner's pages print what the pages show."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[3] / "docs"
#: A block of Python, and the block of output that follows it, after at most a line of text.
EXAMPLE = re.compile(
    r"^```python\n((?:(?!```).)*?)^```\n\n(?:[^`\n]+\n\n)?```text\n(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
#: These need a module of the reader.
SKIPPED = "mixer.py"


def examples() -> list[tuple[str, str, str]]:
    found = []
    for page in ("memory", "time", "layout"):
        for number, (program, output) in enumerate(
            EXAMPLE.findall((PAGES / f"{page}.md").read_text()), start=1
        ):
            if SKIPPED not in program:
                found.append((f"{page}-{number}", program, output))
    return found


@pytest.mark.parametrize(
    ("name", "program", "output"), examples(), ids=[name for name, _, _ in examples()]
)
def test_a_block_prints_what_its_page_shows(name, program, output):
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(program, name, "exec"), {"__name__": name})
    assert printed.getvalue().rstrip() == output.rstrip()


def test_the_pages_have_examples():
    assert len(examples()) >= 7
