"""The table of specimens and the files agree, and what the table says is in the catalogue."""

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

BESIDE = {"__init__", "expected", "test_expected"}  # files here that are no specimens


def test_every_specimen_is_in_the_table_and_every_row_has_its_file():
    assert {file.stem for file in FOLDER.glob("*.py")} - BESIDE == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_specimen_marks_its_guilty_line(name):
    if EXPECTED[name].ending is Ending.WELL:
        assert marked(name, "GUILTY") == marked(name, "ALSO") == ()
    else:
        assert guilty_line(name) in lines_accepted(name)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_specimen_is_an_ordinary_script_that_explains_itself(name):
    text = place(name).read_text()
    assert text.startswith('"""')
    assert "--healthy" in text
    ours = {"another_model"}  # nobody but holdfast's checkpoints tells this cause
    assert bool(re.search(r"^\s*(import|from) holdfast", text, re.MULTILINE)) == (name in ours)
    assert "timeout" not in text  # the process group's default, as users have it


@pytest.mark.parametrize("name", EXPECTED)
def test_the_causes_expected_are_in_the_catalogue(name):
    known = {cause.name for cause in causes.all_causes()}
    assert set(EXPECTED[name].causes) <= known
    assert all(0 <= rank < PROCESSES for rank in EXPECTED[name].ranks)
