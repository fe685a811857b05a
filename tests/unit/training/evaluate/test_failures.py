"""Errors in an evaluation: training continues in lockstep, with unchanged losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.training.collectives.ranks import run
from tests.unit.training.evaluate.training_run import Fault, guarded, summary, train

RANKS = 3

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    **{f"raises at {n}": ({"what": "raises", "at": n}, {}) for n in (1, 2, 3)},
    "memory": ({"what": "memory", "ranks": (0,)}, {}),
    "too large": ({"what": "too large", "times": 0}, {}),
    "all at once": ({"what": "raises", "ranks": (0, 1, 2), "times": 2}, {}),
    "two ranks, different counts": ({"what": "raises", "ranks": (0, 2), "times": 3}, {}),
    "in all attempts": ({"what": "raises", "at": 3, "times": 99}, {"min_coverage": 0.5}),
    "in all attempts, strict": ({"what": "raises", "ranks": (2,), "times": 99}, {"retries": 1}),
}


def run_cases(_rank: int) -> Any:
    without, _ = train(None, ddp=True)
    results_of_ranks = {}
    for name, (fault, options) in CASES.items():
        losses, results = train(
            lambda model: guarded(model, Fault(**fault) if fault else None, **options),  # noqa: B023
            ddp=True,
        )
        results_of_ranks[name] = losses == without, summary(results)
    return results_of_ranks


@pytest.mark.slow
def test_errors_are_agreed_on_and_training_is_unchanged(tmp_path: Path) -> None:
    results_of_ranks = run(RANKS, run_cases, tmp_path, limit_s=100)
    assert not [each for each in results_of_ranks if isinstance(each, Exception)]
    assert all(same for rank in results_of_ranks for same, _ in rank.values())
    assert [rank == results_of_ranks[0] for rank in results_of_ranks] == [True] * RANKS
    by_case = {name: [first, second] for name, (_, (first, second)) in results_of_ranks[0].items()}
    attempts = {name: [each[2] for each in two] for name, two in by_case.items()}
    succeeded = {
        name
        for name, two in by_case.items()
        if all(each[6] and not each[3] and not each[4] for each in two)
    }
    assert succeeded == set(CASES) - {"in all attempts", "in all attempts, strict"}
    assert attempts.pop("nothing") == [1, 1]
    assert attempts.pop("too large") == [
        3,
        1,
    ]  # down to quarters, where the second evaluation begins
    assert attempts.pop("all at once") == [3, 1]
    assert attempts.pop("in all attempts") == [4, 4]
    assert attempts.pop("in all attempts, strict") == [2, 2]
    assert attempts.pop("two ranks, different counts") == [4, 1]
    assert set(map(tuple, attempts.values())) == {(2, 1)}
    _, coverage, _, degraded, failed, errors, _ = by_case["in all attempts"][0]
    assert (degraded, failed, coverage) == (
        True,
        False,
        28 / 30,
    )  # the third batch is rank 1's only one of `short`
    assert errors[1].startswith("ValueError: an invalid sample at training_run.py:")
    metrics, _, _, _, failed, errors, _ = by_case["in all attempts, strict"][0]
    assert (metrics, failed, list(errors)) == ({}, True, [2])
