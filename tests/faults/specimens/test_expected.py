"""The table of specimens matches the files, and its causes are in the catalogue."""

from __future__ import annotations

import re

import pytest

from holdfast import causes
from tests.faults.specimens.expected import (
    EXPECTED,
    FOLDER,
    PROCESSES,
    Ending,
    guilty_line,
    lines_accepted,
    marked,
    place,
)

NOT_SPECIMENS = {"__init__", "expected", "test_expected"}


def test_the_table_lists_exactly_the_specimen_files():
    assert {file.stem for file in FOLDER.glob("*.py")} - NOT_SPECIMENS == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_specimen_marks_its_guilty_line(name):
    if EXPECTED[name].ending is Ending.WELL:
        assert marked(name, "GUILTY") == marked(name, "ALSO") == ()
    else:
        assert guilty_line(name) in lines_accepted(name)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_specimen_is_a_documented_script_without_holdfast(name):
    text = place(name).read_text()
    assert text.startswith('"""')
    assert "--healthy" in text
    imports_holdfast = {"another_model"}  # only holdfast's checkpoints report this cause
    assert bool(re.search(r"^\s*(import|from) holdfast", text, re.MULTILINE)) == (
        name in imports_holdfast
    )
    assert "timeout" not in text  # specimens use the default timeout of process groups


@pytest.mark.parametrize("name", EXPECTED)
def test_the_expected_causes_are_in_the_catalogue(name):
    known = {cause.name for cause in causes.all_causes()}
    assert set(EXPECTED[name].causes) <= known
    assert all(0 <= rank < PROCESSES for rank in EXPECTED[name].ranks)
