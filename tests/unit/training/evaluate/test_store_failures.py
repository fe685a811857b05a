"""Failures of each store operation of an agreement."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.training.evaluate import Evaluation
from holdfast.training.evaluate.store_table import DecisionTable
from tests.unit.training.collectives.ranks import run
from tests.unit.training.evaluate.training_run import guarded, train


class FaultyStore:
    """A store whose operation number ``at`` fails, or is slow."""

    def __init__(self, store: Any, at: int, what: str) -> None:
        self._store, self._left, self._what = store, at, what

    def __getattr__(self, name: str) -> Any:
        self._left -= 1
        if self._left == 0 and self._what == "fails":
            raise ConnectionError("the store closed the connection")
        if self._left == 0:
            time.sleep(0.8)
        return getattr(self._store, name)


def run_cases(rank: int) -> Any:
    """Train repeatedly; each time another store operation fails on one rank."""
    without, _ = train(None)
    results_of_ranks = []
    for culprit in (0, 1):
        for at in range(1, 7):
            what = "is slow" if at % 3 == 0 else "fails"

            def make(model: Any) -> Evaluation:
                evaluation = guarded(model, budget=0.4, grace=0.3)
                if rank == culprit:  # noqa: B023
                    old = evaluation._agreement.table
                    evaluation._agreement.table = DecisionTable(
                        FaultyStore(old.store, at, what),  # noqa: B023
                        old.ranks,
                        old.rank,
                    )
                return evaluation

            losses, results = train(make)
            results_of_ranks.append(
                (
                    losses == without,
                    [(bool(r.metrics), r.failed, r.degraded, ok) for r, ok in results],
                )
            )
    return results_of_ranks


@pytest.mark.slow
def test_failing_store_operations_neither_end_training_nor_corrupt_metrics(
    tmp_path: Path,
) -> None:
    results_of_ranks = run(2, run_cases, tmp_path, limit_s=100)
    assert not [each for each in results_of_ranks if isinstance(each, Exception)]
    assert all(same for rank in results_of_ranks for same, _ in rank)
    results = [result for rank in results_of_ranks for _, both in rank for result in both]
    assert all(ok or failed or degraded for _, failed, degraded, ok in results)
    assert sum(ok for *_, ok in results) > len(results) / 2
    assert any(failed for _, failed, _, _ in results)
