"""The configuration file is equal on all hosts and matches the number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.core.errors import InvalidValue, MissingFile
from tests.unit.training.collectives.ranks import run

ONE = "batch: 4\ngroups:\n- {name: a, ranks: 0, micro_batch: 4}\n"
TWO = ONE.replace("ranks: 0", "ranks: 0-1").replace("batch: 4\ng", "batch: 8\ng")


def test_one_rank(tmp_path: Path):
    file = tmp_path / "heterogeneous.yaml"
    with pytest.raises(MissingFile):
        holdfast.read_heterogeneous(file)
    file.write_text(ONE)
    assert holdfast.read_heterogeneous(file).shares().sizes == ((4,),)
    file.write_text(TWO)
    with pytest.raises(InvalidValue, match="it is for 2 ranks, but the job has 1"):
        holdfast.read_heterogeneous(file)
    file.write_bytes(b"\xff\xfe" + ONE.encode())
    with pytest.raises(InvalidValue, match="did you mean batch"):
        holdfast.read_heterogeneous(file)


def reads(rank: int, contents: list[str | None], folder: Path) -> str:
    file = folder / f"of rank {rank}.yaml"  # emulates a separate host
    if contents[rank] is not None:
        file.write_text(contents[rank])
    try:
        return repr(holdfast.read_heterogeneous(file).shares().sizes)
    except (InvalidValue, MissingFile) as error:
        return str(error)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ([TWO, TWO], ["((4,), (4,))", "((4,), (4,))"]),
        (
            [TWO, TWO + "#"],
            ["rank 1 read a different file at this path, or none", "rank 0 read a different file"],
        ),
        (
            [TWO, None],
            ["rank 1 read a different file at this path, or none", "there is no such file"],
        ),
    ],
)
def test_files_that_differ_between_hosts_are_rejected(tmp_path: Path, contents, expected):
    results = run(2, reads, tmp_path, contents, tmp_path)
    assert all(word in each for word, each in zip(expected, results, strict=True)), results
