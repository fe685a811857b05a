"""What follows from the ranks' outcomes, and how it is told: pure."""

from __future__ import annotations

from math import inf, isnan, nan

from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.evaluate.decision import Decision, Outcome, Tally, decode, encode, weigh
from holdfast.runtime.evaluate.result import result_of

WELL = Tally(4, 4, complete=True, sums={"loss": (8.0, 4.0)})
HALF = Tally(2, 4, sums={"loss": (2.0, 2.0)})


def result(*outcomes: Outcome | None, min_coverage: float = 0.7, may_retry: bool = False):
    heard = {rank: outcome for rank, outcome in enumerate(outcomes) if outcome is not None}
    decision = weigh(heard, range(len(outcomes)), may_retry=may_retry)
    return decision, result_of(7, decision, min_coverage, 1.0)


def test_all_well_is_the_mean_over_all_samples() -> None:
    _, told = result(Outcome({"a": WELL}), Outcome({"a": Tally(1, 1, complete=True, sums={"loss": (7.0, 1.0)})}))
    assert told.metrics == {"a/loss": 3.0}
    assert (told.coverage, told.degraded, told.failed, told.troubles) == (1.0, False, False, {})


def test_a_part_counts_where_it_is_large_enough_and_is_never_nought_where_not() -> None:
    outcomes = Outcome({"a": WELL}), Outcome({"a": HALF}, "it broke")
    _, told = result(*outcomes)
    assert told.metrics == {"a/loss": 10 / 6}
    assert (told.coverage, told.degraded, told.failed, told.troubles) == (0.75, True, False, {1: "it broke"})
    _, strict = result(*outcomes, min_coverage=0.8)
    assert (strict.metrics, strict.failed, strict.degraded) == ({}, True, False)
    assert strict.for_sinks()["eval/failed"] == 1.0
    assert not any("loss" in name for name in strict.for_sinks())


def test_each_dataset_stands_by_itself() -> None:
    _, told = result(Outcome({"a": WELL, "b": HALF}, "it broke"))
    assert told.metrics == {"a/loss": 2.0}
    assert told.failed
    assert told.coverages == {"a": 1.0, "b": 0.5}


def test_who_is_not_heard_is_missed_and_not_waited_for_again() -> None:
    decision, told = result(Outcome({"a": WELL}), None, may_retry=True)
    assert (decision.again, decision.absent, decision.lost) == (False, (1,), True)
    assert told.coverage == 0.5  # its share is taken to be as large
    assert told.failed
    assert told.troubles == {1: "did not come"}
    again, _ = result(Outcome({"a": WELL}), Outcome({"a": HALF}, "x"), may_retry=True)
    assert again.again


def test_nobody_was_heard_or_nothing_was_seen() -> None:
    assert result(None, None)[1].failed
    _, told = result(Outcome({"a": Tally(0, 0, complete=True)}))
    assert told.failed
    assert told.troubles == {0: "a gave no sample on any rank"}


def test_a_length_that_nobody_knows_is_no_coverage() -> None:
    _, told = result(Outcome({"": Tally(3, None, sums={"loss": (1.0, 3.0)})}, "x"))
    assert isnan(told.coverage)
    assert told.failed
    assert "eval/coverage" not in told.for_sinks()


def test_what_is_not_finite_is_told_as_it_is() -> None:
    sums = {"a": (nan, 1.0), "b": (inf, 2.0), "c": (0.0, 0.0), "d": (1.0, 2.0)}
    decision, told = result(decode(encode(Outcome({"": Tally(1, 1, complete=True, sums=sums)})), Outcome))
    assert told.not_finite == ("a", "b", "c")
    assert told.metrics["d"] == 0.5
    assert not told.failed
    assert "nan" in encode(decision).lower()


NUMBERS = st.floats(allow_nan=False)
TALLIES = st.builds(
    Tally, st.integers(0, 10**12), st.none() | st.integers(0, 10**12), st.none() | st.integers(0, 9), st.booleans(),
    st.dictionaries(st.text(max_size=5), st.tuples(NUMBERS, NUMBERS), max_size=3),
)  # fmt: skip


@given(
    st.dictionaries(st.text(max_size=5), TALLIES, max_size=3), st.dictionaries(st.integers(0, 9), st.text(max_size=9))
)
def test_what_is_told_arrives_to_the_bit(tallies: dict[str, Tally], troubles: dict[int, str]) -> None:
    decision = Decision(tallies, again=True, troubles=troubles, absent=(1, 2), lost=True, attempts=3)
    assert decode(encode(decision), Decision) == decision
