"""Ranks that are late, never come, or lose their communicator: they are left, and all hear the same."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import CollectiveFailed
from holdfast.runtime.evaluate import meeting
from tests.runtime.comm.ranks import run
from tests.runtime.evaluate.training import Fault, guarded, summary, train

RANKS = 3


def late(rank: int) -> Any:
    """Ranks that are too slow, that never come, whose communicator breaks, or that talk to the store in vain."""
    without, _ = train(None)
    told = {}
    for name, (fault, options) in LATE.items():
        broken = Broken() if name == "the communicator breaks" and rank == 1 else nullcontext()
        with broken:
            losses, results = train(lambda model: guarded(model, Fault(**fault) if fault else None, **options))  # noqa: B023
        told[name] = losses == without, summary(results)
    return told


class Broken:
    """The second sum over the ranks fails here, and is not even begun: the others wait for it in vain."""

    def __enter__(self) -> None:
        self._whole, self._calls = meeting.all_reduce, 0
        meeting.all_reduce = self._reduce

    def __exit__(self, *_: object) -> None:
        meeting.all_reduce = self._whole

    def _reduce(self, *arguments: Any, **options: Any) -> Any:
        self._calls += 1
        if self._calls == 1:
            raise CollectiveFailed("all_reduce", why="the connection was closed")
        return self._whole(*arguments, **options)


LATE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a batch is slow": ({"what": "sleeps"}, {"budget": 0.5, "grace": 10, "min_coverage": 0.6}),
    "a rank never comes": ({"what": "hangs"}, {"budget": 0.5, "grace": 0.5, "min_coverage": 0.6}),
    "two never come": ({"what": "hangs", "ranks": (0, 2)}, {"budget": 0.5, "grace": 0.5}),
    "the communicator breaks": ({}, {"budget": 1.0, "grace": 4.0}),
}


@pytest.mark.slow
def test_who_is_late_or_cut_off_is_left_and_all_hear_the_same(tmp_path: Path) -> None:
    told = run(RANKS, late, tmp_path, limit_s=100)
    assert not [each for each in told if isinstance(each, Exception)]
    assert all(same for rank in told for same, _ in rank.values())
    assert [rank == told[0] for rank in told] == [True] * RANKS
    found = {name: two for name, (_, two) in told[0].items()}
    _, coverage, attempts, degraded, failed, troubles, _ = found["a batch is slow"][0]
    assert (attempts, degraded, failed, troubles) == (1, True, False, {1: "its time was over"})
    assert coverage == 24 / 30
    metrics, coverage, _, degraded, failed, troubles, _ = found["a rank never comes"][0]
    assert (degraded, failed, troubles) == (True, False, {1: "did not come"})
    assert set(metrics) == {"long/square", "long/positive", "short/square", "short/positive"}
    metrics, _, _, _, failed, troubles, _ = found["two never come"][0]
    assert (metrics, failed, troubles) == ({}, True, {0: "did not come", 2: "did not come"})
    for name in LATE:
        assert found[name][1][6], name  # the second evaluation is whole and right again, in a fresh group where needed
    assert all(each[6] for each in found["the communicator breaks"])
