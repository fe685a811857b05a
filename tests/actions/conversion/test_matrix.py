"""Every kind of checkpoint into every other: the table in docs/checkpoints.md is what is measured."""

import pytest

from tests.saved import matrix
from tests.saved.making import shared_store


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_table_of_conversions_is_what_arrives(tmp_path_factory):
    cells = matrix.measured(shared_store(tmp_path_factory))
    unlike = {where: found for where, found in cells.items() if found[0] in ("part", "no")}
    assert {row for row, _ in unlike} == {"FSDP1 local"}, unlike
    assert all("stand in no file" in why for _, (why,) in unlike.values())
    page = matrix.PAGE.read_text()
    assert page == matrix.written(page, cells), "run: python -m tests.saved.matrix"
