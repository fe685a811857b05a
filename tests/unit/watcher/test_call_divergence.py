"""The first divergence: minority, ties, skipped calls, and legal differences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.watcher.rules import call_divergence
from tests.unit.watcher.rank_tables import EVAL, TRAIN, call, history, row


def test_agreement_is_no_divergence() -> None:
    assert (
        call_divergence.find_divergence([row(rank, *history(9), call(10)) for rank in range(4)])
        is None
    )


@pytest.mark.parametrize(
    ("odd", "kind"),
    [
        (call(10, "broadcast"), "operation"),
        (call(10, dtype="float16"), "dtype"),
        (call(10, elements=5), "shape"),
    ],
)
@pytest.mark.parametrize("guilty", [0, 2])
def test_the_minority_is_named_at_any_rank(odd: object, kind: str, guilty: int) -> None:
    ranks = [row(rank, *history(9), odd if rank == guilty else call(10)) for rank in range(4)]  # type: ignore[arg-type]
    found = call_divergence.find_divergence(ranks)
    assert found is not None
    assert (found.kind, found.minority, found.sequence, found.tie) == (kind, (guilty,), 10, False)


def test_sizes_of_uneven_operations_are_not_compared() -> None:
    ranks = [
        row(rank, *history(9), call(10, "all_to_all_single", elements=4 + rank))
        for rank in range(4)
    ]
    assert call_divergence.find_divergence(ranks) is None


def test_a_skipped_call_is_found_by_its_usual_successor() -> None:
    pattern = (("all_reduce", TRAIN), ("all_gather", EVAL))
    usual = [
        row(rank, *history(9, *pattern), call(10, "all_gather", site=EVAL)) for rank in (0, 1, 3)
    ]
    found = call_divergence.find_divergence(
        [*usual, row(2, *history(9, *pattern), call(10, "all_reduce", site=TRAIN))]
    )
    assert found is not None
    assert found.minority == (2,)
    assert found.skipped is not None
    assert found.skipped.site == EVAL


def test_an_extra_call_is_not_a_skipped_one() -> None:
    ranks = [
        row(rank, *history(9), call(10, "broadcast", site=EVAL) if rank == 0 else call(10))
        for rank in range(4)
    ]
    found = call_divergence.find_divergence(ranks)
    assert found is not None
    assert found.minority == (0,)
    assert found.skipped is None


def test_of_two_ranks_the_one_that_changes_its_call_order_is_odd() -> None:
    for guilty in (0, 1):
        odd = call(10, "broadcast", site=EVAL)
        ranks = [row(rank, *history(9), odd if rank == guilty else call(10)) for rank in (0, 1)]
        found = call_divergence.find_divergence(ranks)
        assert found is not None
        assert (found.minority, found.tie) == ((guilty,), False)


def test_a_tie_without_a_usual_order_is_reported_as_a_tie() -> None:
    found = call_divergence.find_divergence(
        [row(0, call(1, elements=4)), row(1, call(1, elements=5))]
    )
    assert found is not None
    assert found.tie


def test_a_mismatch_that_completed_is_still_found() -> None:
    """On gloo an all-reduce of unequal sizes returns wrong sums; the next one hangs."""
    done = [*history(9)]
    ranks = [
        row(rank, *done, call(10, elements=5 if rank == 1 else 4, done=True), call(11))
        for rank in range(3)
    ]
    found = call_divergence.find_divergence(ranks)
    assert found is not None
    assert (found.sequence, found.minority) == (10, (1,))


@given(st.integers(3, 12), st.data())
def test_the_first_of_several_divergences_is_returned(size: int, data: st.DataObject) -> None:
    guilty = data.draw(st.integers(0, size - 1))
    first = data.draw(st.integers(2, 8))
    ranks = []
    for rank in range(size):
        names = [
            "broadcast" if rank == guilty and n >= first else "all_reduce" for n in range(1, 12)
        ]
        calls = [call(n, name, done=True) for n, name in enumerate(names, 1)]
        ranks.append(row(rank, *calls, call(12)))
    found = call_divergence.find_divergence(ranks)
    assert found is not None
    assert (found.sequence, found.minority) == (first, (guilty,))


def test_on_a_tie_the_call_that_usually_comes_next_is_the_usual_one() -> None:
    pattern = (*((("all_reduce", TRAIN),) * 4), ("all_gather", EVAL))
    for until, guilty in ((17, 1), (19, 0)):  # after two calls of the turn, and after all four
        calls = (call(until + 1), call(until + 1, "all_gather", site=EVAL))
        ranks = [row(rank, *history(until, *pattern), calls[rank]) for rank in (0, 1)]
        found = call_divergence.find_divergence(ranks)
        assert found is not None
        assert (found.minority, found.early) == ((guilty,), 2 if guilty else 1)
