"""Notebooks: what is read of them, how their lines are named, and what is passed over."""

import json

import pytest

from holdfast.facts.code import notebooks, reading


def book(*cells, **metadata):
    made = [{"cell_type": "code", "source": each} if isinstance(each, str) else each for each in cells]
    return json.dumps({"cells": made, "metadata": metadata, "nbformat": 4}).encode()


def parse(content):
    return notebooks.parse(content, reading.MOST_BYTES)


def test_cells_follow_each_other_and_lines_keep_their_cell():
    words = {"cell_type": "markdown", "source": ["# Title\n", "words"]}
    read = parse(book(words, "a = 1\nb = 2", {"cell_type": "code", "source": ["c = 3\n", "d = 4"]}))
    assert read.text == "a = 1\nb = 2\nc = 3\nd = 4"
    assert [read.place(line) for line in (1, 2, 3, 4)] == [(2, 1), (2, 2), (3, 1), (3, 2)]
    assert dict(notebooks.texts("n.ipynb", read))["n.ipynb:cell 3"] == ["c = 3", "d = 4"]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("%matplotlib inline\nx = 1", "pass\nx = 1"),
        ("if x:\n    !pip install y \\\n  z\nw = 1", "if x:\n    pass\n\nw = 1"),
        ("files = !ls\nhere = %pwd", "files = get_ipython()\nhere = get_ipython()"),
        ("%%time\nx = 1", "\nx = 1"),
        ("%%bash\necho 'no Python'\nfor", "\n\n"),
        ("torch.save?\n?torch\nx = 1", "pass\npass\nx = 1"),
        ("text = '''\n%s\n!'''", "text = '''\n%s\n!'''"),
        ("await train()", "await train()"),
    ],
)
def test_magics_are_passed_over_and_lines_stay_where_they_are(cell, text):
    read = parse(book(cell))
    assert (read.text, read.broken) == (text, ())


def test_a_cell_that_is_no_python_is_said_and_the_rest_is_read(tmp_path):
    (tmp_path / "n.ipynb").write_bytes(book("x = 1", "print 'two'", "y = 2"))
    read = reading.read([tmp_path])
    assert read.modules["n"].lines == ["x = 1", "", "y = 2"]
    (passed,) = read.passed
    assert passed.file == f"{tmp_path}/n.ipynb:cell 2"
    assert "line 1 is no Python 3" in passed.why


def test_the_old_form_is_read():
    cell = {"cell_type": "code", "input": ["x = 1"]}
    assert parse(json.dumps({"worksheets": [{"cells": [cell]}]}).encode()).text == "x = 1"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no notebook"),
        (b"{'cells': []}", "no notebook"),
        (b"[1]", "no notebook: Expected `object`"),
        (b"{}", "it has no cells"),
        (b'{"cells": 3}', "no notebook: Expected `array"),
        (b'{"cells": [{"cell_type": "code", "source": {}}]}', "no notebook"),
        (b"\xff\xfe{}", "no notebook"),
        (b'{"x": ' + b"[" * 100_000, "nested too deeply"),
        (book("x <- 1", kernelspec={"language": "R"}), "a notebook of 'R'"),
        (book("x = 1\n" * 800_000), "more than 4 MiB"),
    ],
)
def test_what_is_no_notebook_of_python_is_passed_over(content, why, tmp_path):
    (tmp_path / "n.ipynb").write_bytes(content)
    read = reading.read([tmp_path])
    assert not read.modules
    (passed,) = read.passed
    assert why in passed.why
