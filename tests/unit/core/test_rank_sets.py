from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.findings import Finding, Level, Subject
from holdfast.core.rank_sets import compress_ranks, describe_ranks, fold_findings, rank_label


def parse(text: str) -> set[int]:
    ranks: set[int] = set()
    for piece in filter(None, text.split(",")):
        first, _, last = piece.partition("-")
        ranks.update(range(int(first), int(last or first) + 1))
    return ranks


def waits(rank: int, message: str | None = None) -> Finding:
    return Finding(
        code="SYNC001",
        cause="waits",
        level=Level.NOTE,
        message=message or f"rank {rank} waits in all_reduce #31 for rank 2",
        subject=Subject(rank=rank),
    )


def test_compress_ranks():
    assert compress_ranks([3, 0, 1]) == "0-1,3"
    assert compress_ranks([]) == ""
    assert compress_ranks([7, 7]) == "7"
    assert compress_ranks(range(0, 16384, 8), limit=3) == "0,8,16,…"


@given(st.sets(st.integers(0, 20_000), max_size=200))
def test_compression_is_lossless(ranks):
    assert parse(compress_ranks(ranks)) == ranks


def test_large_sets_are_counted():
    all_but_two = [rank for rank in range(1024) if rank != 2]
    assert rank_label(all_but_two) == "0-1,3-1023 (1023)"
    assert describe_ranks(all_but_two) == "ranks 0-1,3-1023 (1023 ranks)"
    assert describe_ranks([2]) == "rank 2"
    assert describe_ranks([0, 1, 3]) == "ranks 0-1,3"


def test_findings_that_differ_only_in_rank_are_folded():
    (fold,) = fold_findings([waits(rank) for rank in (0, 1, 3)])
    assert fold.ranks == (0, 1, 3)
    assert fold.sentence == "each of ranks 0-1,3 waits in all_reduce #31 for rank 2"


def test_folding_a_rank_inside_the_sentence():
    (fold,) = fold_findings(
        [waits(rank, f"nothing came from rank {rank} in time") for rank in (4, 5)]
    )
    assert fold.sentence == "ranks 4-5: nothing came from that rank in time"


def test_other_differences_prevent_folding():
    other_line = msgspec.structs.replace(waits(1), subject=Subject(rank=1, file="train.py", line=4))
    assert len(fold_findings([waits(0), other_line, waits(3, "rank 3 is dead")])) == 3
    assert [fold.sentence for fold in fold_findings([waits(0)])] == [
        "rank 0 waits in all_reduce #31 for rank 2"
    ]
