"""Late and missing ranks, and broken communicators: all ranks get the same result."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.errors import CollectiveFailed
from holdfast.training.evaluate import agreement
from holdfast.training.evaluate.local import OUT_OF_TIME
from holdfast.training.evaluate.result import NO_REPORT
from tests.unit.training.collectives.ranks import run
from tests.unit.training.evaluate.training_run import Fault, guarded, summary, train

RANKS = 3


def run_cases(rank: int) -> Any:
    """Return the results with slow and missing ranks, and with a broken communicator."""
    without, _ = train(None)
    results_of_ranks = {}
    for name, (fault, options) in CASES.items():
        broken = (
            BrokenCommunicator()
            if name == "the communicator breaks" and rank == 1
            else nullcontext()
        )
        with broken:
            losses, results = train(
                lambda model: guarded(model, Fault(**fault) if fault else None, **options)  # noqa: B023
            )
        results_of_ranks[name] = losses == without, summary(results)
    return results_of_ranks


class BrokenCommunicator:
    """Prevents this rank from starting the first all-reduce; the other ranks time out."""

    def __enter__(self) -> None:
        self._original, self._calls = agreement.all_reduce, 0
        agreement.all_reduce = self._reduce

    def __exit__(self, *_: object) -> None:
        agreement.all_reduce = self._original

    def _reduce(self, *arguments: Any, **options: Any) -> Any:
        self._calls += 1
        if self._calls == 1:
            raise CollectiveFailed("all_reduce", why="the connection was closed")
        return self._original(*arguments, **options)


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a batch is slow": ({"what": "sleeps"}, {"budget": 0.5, "grace": 10, "min_coverage": 0.6}),
    "a rank is missing": ({"what": "hangs"}, {"budget": 0.5, "grace": 0.5, "min_coverage": 0.6}),
    "two ranks are missing": ({"what": "hangs", "ranks": (0, 2)}, {"budget": 0.5, "grace": 0.5}),
    "the communicator breaks": ({}, {"budget": 1.0, "grace": 4.0}),
}


@pytest.mark.slow
def test_late_and_missing_ranks_do_not_delay_the_common_result(tmp_path: Path) -> None:
    results_of_ranks = run(RANKS, run_cases, tmp_path, limit_s=100)
    assert not [each for each in results_of_ranks if isinstance(each, Exception)]
    assert all(same for rank in results_of_ranks for same, _ in rank.values())
    assert [rank == results_of_ranks[0] for rank in results_of_ranks] == [True] * RANKS
    by_case = {name: two for name, (_, two) in results_of_ranks[0].items()}
    _, coverage, attempts, degraded, failed, errors, _ = by_case["a batch is slow"][0]
    assert (attempts, degraded, failed, errors) == (1, True, False, {1: OUT_OF_TIME})
    assert coverage == 24 / 30
    metrics, coverage, _, degraded, failed, errors, _ = by_case["a rank is missing"][0]
    assert (degraded, failed, errors) == (True, False, {1: NO_REPORT})
    assert set(metrics) == {"long/square", "long/positive", "short/square", "short/positive"}
    metrics, _, _, _, failed, errors, _ = by_case["two ranks are missing"][0]
    assert (metrics, failed, errors) == ({}, True, {0: NO_REPORT, 2: NO_REPORT})
    for name in CASES:
        # The second evaluation is complete and correct, in a rebuilt group if needed.
        assert by_case[name][1][6], name
    assert all(each[6] for each in by_case["the communicator breaks"])
