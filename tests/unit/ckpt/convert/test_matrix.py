"""The conversion table in docs/checkpoints.md matches measured conversions."""

import pytest

from tests.golden.checkpoints import matrix
from tests.golden.checkpoints.making import shared_store

#: One row of each family; `make matrix` runs all of them.
SAMPLE = (
    "safetensors",
    "DCP, FSDP2",
    "FSDP1 local",
    "ZeRO-2",
    "universal, of ZeRO-2",
    "Accelerate, DDP, .bin",
)


@pytest.mark.slow
def test_sample_of_the_conversion_table(tmp_path_factory):
    cells = matrix.measured(shared_store(tmp_path_factory), SAMPLE)
    page = matrix.said(matrix.PAGE.read_text())
    assert set(page) == set(matrix.SOURCES)
    for row in SAMPLE:
        assert page[row] == [matrix.MARKS[cells[row, to][0]] for to in matrix.targets.WRITERS], row


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_conversion_table(tmp_path_factory):
    cells = matrix.measured(shared_store(tmp_path_factory))
    unlike = {where: found for where, found in cells.items() if found[0] in ("part", "no")}
    assert {row for row, _ in unlike} == {"FSDP1 local"}, unlike
    assert all("stand in no file" in why for _, (why,) in unlike.values())
    page = matrix.PAGE.read_text()
    assert page == matrix.written(page, cells), "run: python -m tests.golden.checkpoints.matrix"
