"""One file for all ranks: the same everywhere, and for as many ranks as there are."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.errors import BadValue, MissingFile
from tests.runtime.comm.ranks import run

ONE = "batch: 4\ngroups:\n- {name: a, ranks: 0, micro_batch: 4}\n"
TWO = ONE.replace("ranks: 0", "ranks: 0-1").replace("batch: 4\ng", "batch: 8\ng")


def test_one_rank(tmp_path: Path):
    file = tmp_path / "heterogeneous.yaml"
    with pytest.raises(MissingFile):
        holdfast.read_heterogeneous(file)
    file.write_text(ONE)
    assert holdfast.read_heterogeneous(file).shares().sizes == ((4,),)
    file.write_text(TWO)
    with pytest.raises(BadValue, match="it is for 2 ranks, and there are 1"):
        holdfast.read_heterogeneous(file)
    file.write_bytes(b"\xff\xfe" + ONE.encode())
    with pytest.raises(BadValue, match="did you mean batch"):
        holdfast.read_heterogeneous(file)


def reads(rank: int, texts: list[str | None], folder: Path) -> str:
    file = folder / f"of rank {rank}.yaml"  # as on a host of its own
    if texts[rank] is not None:
        file.write_text(texts[rank])
    try:
        return repr(holdfast.read_heterogeneous(file).shares().sizes)
    except (BadValue, MissingFile) as error:
        return str(error)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([TWO, TWO], ["((4,), (4,))", "((4,), (4,))"]),
        ([TWO, TWO + "#"], ["rank 1 read another one there, or none", "rank 0 read another one"]),
        ([TWO, None], ["rank 1 read another one there, or none", "there is no such file"]),
    ],
)
def test_files_that_differ_between_hosts_are_refused(tmp_path: Path, texts, said):
    found = run(2, reads, tmp_path, texts, tmp_path)
    assert all(word in each for word, each in zip(said, found, strict=True)), found
