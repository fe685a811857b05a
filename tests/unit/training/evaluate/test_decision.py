"""Decisions from the ranks' outcomes, and their results (pure functions)."""

from __future__ import annotations

from math import inf, isnan, nan

from hypothesis import given
from hypothesis import strategies as st

from holdfast.training.evaluate.decision import (
    DatasetTally,
    EvaluationDecision,
    RankOutcome,
    combine_outcomes,
    decode,
    encode,
)
from holdfast.training.evaluate.result import NO_REPORT, create_result

COMPLETE = DatasetTally(4, 4, complete=True, sums={"loss": (8.0, 4.0)})
HALF = DatasetTally(2, 4, sums={"loss": (2.0, 2.0)})


def result(*outcomes: RankOutcome | None, min_coverage: float = 0.7, may_retry: bool = False):
    reported = {rank: outcome for rank, outcome in enumerate(outcomes) if outcome is not None}
    decision = combine_outcomes(reported, range(len(outcomes)), may_retry=may_retry)
    return decision, create_result(7, decision, min_coverage, 1.0)


def test_mean_over_all_samples() -> None:
    _, evaluated = result(
        RankOutcome({"a": COMPLETE}),
        RankOutcome({"a": DatasetTally(1, 1, complete=True, sums={"loss": (7.0, 1.0)})}),
    )
    assert evaluated.metrics == {"a/loss": 3.0}
    assert (evaluated.coverage, evaluated.degraded, evaluated.failed, evaluated.errors) == (
        1.0,
        False,
        False,
        {},
    )


def test_incomplete_mean_needs_min_coverage_and_is_absent_otherwise() -> None:
    outcomes = RankOutcome({"a": COMPLETE}), RankOutcome({"a": HALF}, "it broke")
    _, evaluated = result(*outcomes)
    assert evaluated.metrics == {"a/loss": 10 / 6}
    assert (evaluated.coverage, evaluated.degraded, evaluated.failed, evaluated.errors) == (
        0.75,
        True,
        False,
        {1: "it broke"},
    )
    _, strict = result(*outcomes, min_coverage=0.8)
    assert (strict.metrics, strict.failed, strict.degraded) == ({}, True, False)
    assert strict.for_sinks()["eval/failed"] == 1.0
    assert not any("loss" in name for name in strict.for_sinks())


def test_datasets_fail_independently() -> None:
    _, evaluated = result(RankOutcome({"a": COMPLETE, "b": HALF}, "it broke"))
    assert evaluated.metrics == {"a/loss": 2.0}
    assert evaluated.failed
    assert evaluated.coverages == {"a": 1.0, "b": 0.5}


def test_missing_rank_is_reported_and_prevents_a_retry() -> None:
    decision, evaluated = result(RankOutcome({"a": COMPLETE}), None, may_retry=True)
    assert (decision.retry, decision.missing, decision.group_lost) == (False, (1,), True)
    assert evaluated.coverage == 0.5  # its share is assumed to be as large
    assert evaluated.failed
    assert evaluated.errors == {1: NO_REPORT}
    retried, _ = result(RankOutcome({"a": COMPLETE}), RankOutcome({"a": HALF}, "x"), may_retry=True)
    assert retried.retry


def test_no_rank_reported_or_no_sample_seen() -> None:
    assert result(None, None)[1].failed
    _, evaluated = result(RankOutcome({"a": DatasetTally(0, 0, complete=True)}))
    assert evaluated.failed
    assert evaluated.errors == {0: "no samples on any rank from a"}


def test_unknown_length_gives_nan_coverage() -> None:
    _, evaluated = result(RankOutcome({"": DatasetTally(3, None, sums={"loss": (1.0, 3.0)})}, "x"))
    assert isnan(evaluated.coverage)
    assert evaluated.failed
    assert "eval/coverage" not in evaluated.for_sinks()


def test_non_finite_metrics_are_reported() -> None:
    sums = {"a": (nan, 1.0), "b": (inf, 2.0), "c": (0.0, 0.0), "d": (1.0, 2.0)}
    decision, evaluated = result(
        decode(encode(RankOutcome({"": DatasetTally(1, 1, complete=True, sums=sums)})), RankOutcome)
    )
    assert evaluated.not_finite == ("a", "b", "c")
    assert evaluated.metrics["d"] == 0.5
    assert not evaluated.failed
    assert "nan" in encode(decision).lower()


NUMBERS = st.floats(allow_nan=False)
TALLIES = st.builds(
    DatasetTally,
    st.integers(0, 10**12),
    st.none() | st.integers(0, 10**12),
    st.none() | st.integers(0, 9),
    st.booleans(),
    st.dictionaries(st.text(max_size=5), st.tuples(NUMBERS, NUMBERS), max_size=3),
)


@given(
    st.dictionaries(st.text(max_size=5), TALLIES, max_size=3),
    st.dictionaries(st.integers(0, 9), st.text(max_size=9)),
)
def test_encoding_is_exact(tallies: dict[str, DatasetTally], errors: dict[int, str]) -> None:
    decision = EvaluationDecision(
        tallies, retry=True, errors=errors, missing=(1, 2), group_lost=True, attempts=3
    )
    assert decode(encode(decision), EvaluationDecision) == decision
