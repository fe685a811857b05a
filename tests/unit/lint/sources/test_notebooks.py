"""Notebooks: cells, line numbers, and reasons to skip."""

import json

import pytest

from holdfast.lint.sources import files, notebooks


def book(*cells, **metadata):
    documents = [
        {"cell_type": "code", "source": cell} if isinstance(cell, str) else cell for cell in cells
    ]
    return json.dumps({"cells": documents, "metadata": metadata, "nbformat": 4}).encode()


def parse(content):
    return notebooks.parse_notebook(content, files.MAX_BYTES)


def test_lines_keep_their_cell():
    words = {"cell_type": "markdown", "source": ["# Title\n", "words"]}
    parsed = parse(
        book(words, "a = 1\nb = 2", {"cell_type": "code", "source": ["c = 3\n", "d = 4"]})
    )
    assert parsed.text == "a = 1\nb = 2\nc = 3\nd = 4"
    assert [parsed.cell_of_line(line) for line in (1, 2, 3, 4)] == [(2, 1), (2, 2), (3, 1), (3, 2)]
    assert dict(notebooks.iter_cell_lines("n.ipynb", parsed))["n.ipynb:cell 3"] == [
        "c = 3",
        "d = 4",
    ]


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
def test_magics_are_replaced_and_line_numbers_kept(cell, text):
    parsed = parse(book(cell))
    assert (parsed.text, parsed.broken) == (text, ())


def test_an_invalid_cell_is_reported_and_the_rest_is_read(tmp_path):
    (tmp_path / "n.ipynb").write_bytes(book("x = 1", "print 'two'", "y = 2"))
    parsed = files.read_sources([tmp_path])
    assert parsed.modules["n"].lines == ["x = 1", "", "y = 2"]
    (passed,) = parsed.skipped
    assert passed.file == f"{tmp_path}/n.ipynb:cell 2"
    assert "line 1: SyntaxError" in passed.why


def test_format_3_is_read():
    cell = {"cell_type": "code", "input": ["x = 1"]}
    assert parse(json.dumps({"worksheets": [{"cells": [cell]}]}).encode()).text == "x = 1"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not a valid notebook"),
        (b"{'cells': []}", "not a valid notebook"),
        (b"[1]", "not a valid notebook: Expected `object`"),
        (b"{}", "no cells"),
        (b'{"cells": 3}', "not a valid notebook: Expected `array"),
        (b'{"cells": [{"cell_type": "code", "source": {}}]}', "not a valid notebook"),
        (b"\xff\xfe{}", "not a valid notebook"),
        (b'{"x": ' + b"[" * 100_000, "nested too deeply"),
        (book("x <- 1", kernelspec={"language": "R"}), "not a Python notebook (language 'R')"),
        (book("x = 1\n" * 800_000), "more than 4 MiB"),
    ],
)
def test_other_files_are_skipped_with_a_reason(content, why, tmp_path):
    (tmp_path / "n.ipynb").write_bytes(content)
    parsed = files.read_sources([tmp_path])
    assert not parsed.modules
    (passed,) = parsed.skipped
    assert why in passed.why
