"""Paths are compared up to where ranks meet again: exits, exceptions and iterators."""

import textwrap

import pytest

from tests.unit.lint.interpreter.flow import HEAD, exceptions, exits, iterators, training_loops
from tests.unit.lint.interpreter.test_forms import marked_lines, reported_lines

PROGRAMS = (
    exits.EXITS
    | exits.PROCESS_EXITS
    | exceptions.RAISES
    | exceptions.FAILURES
    | iterators.ITERATORS
    | training_loops.TRAINING
)
CORRECT = iterators.CORRECT | PROGRAMS


def version(text: str, dropped: str) -> str:
    """Return one version of a program, without the lines of the other one."""
    lines: list[str] = []
    for line in (HEAD + textwrap.dedent(text)).split("\n"):
        if f"# {dropped}" not in line:
            lines.append(line)
        elif lines[-1].endswith(":") and depth(line) > depth(lines[-1]):
            lines.append(" " * depth(line) + "pass")
    return "\n".join(lines)


def depth(line: str) -> int:
    """Return the indentation of a line."""
    return len(line) - len(line.lstrip())


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_divergence_is_found(name, tmp_path):
    text = version(PROGRAMS[name], "good")
    assert reported_lines(tmp_path, text) & marked_lines(text.replace("# bad found", "# found"))


@pytest.mark.parametrize("name", CORRECT)
def test_the_corrected_version_has_no_finding(name, tmp_path):
    text = version(CORRECT[name], "bad").replace("# found", "")
    compile(text, name, "exec")
    assert reported_lines(tmp_path, text) == set()
