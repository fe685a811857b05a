"""What ranks raise in an evaluation: training goes on in lockstep, with the losses that it has without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.runtime.comm.ranks import run
from tests.runtime.evaluate.training import Fault, guarded, summary, train

RANKS = 3

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    **{f"raises at {n}": ({"what": "raises", "at": n}, {}) for n in (1, 2, 3)},
    "memory": ({"what": "memory", "ranks": (0,)}, {}),
    "too large": ({"what": "too large", "times": 0}, {}),
    "all at once": ({"what": "raises", "ranks": (0, 1, 2), "times": 2}, {}),
    "two ranks differently often": ({"what": "raises", "ranks": (0, 2), "times": 3}, {}),
    "in all tries": ({"what": "raises", "at": 3, "times": 99}, {"min_coverage": 0.5}),
    "in all tries, strict": ({"what": "raises", "ranks": (2,), "times": 99}, {"retries": 1}),
}


def works(_rank: int) -> Any:
    without, _ = train(None, ddp=True)
    told = {}
    for name, (fault, options) in CASES.items():
        losses, results = train(lambda model: guarded(model, Fault(**fault) if fault else None, **options), ddp=True)  # noqa: B023
        told[name] = losses == without, summary(results)
    return told


@pytest.mark.slow
def test_what_a_rank_raises_is_agreed_and_training_is_the_same(tmp_path: Path) -> None:
    told = run(RANKS, works, tmp_path, limit_s=100)
    assert not [each for each in told if isinstance(each, Exception)]
    assert all(same for rank in told for same, _ in rank.values())
    assert [rank == told[0] for rank in told] == [True] * RANKS
    found = {name: [first, second] for name, (_, (first, second)) in told[0].items()}
    tries = {name: [each[2] for each in two] for name, two in found.items()}
    well = {name for name, two in found.items() if all(each[6] and not each[3] and not each[4] for each in two)}
    assert well == set(CASES) - {"in all tries", "in all tries, strict"}
    assert tries.pop("nothing") == [1, 1]
    assert tries.pop("too large") == [3, 1]  # down to quarters, where the second evaluation begins
    assert tries.pop("all at once") == [3, 1]
    assert tries.pop("in all tries") == [4, 4]
    assert tries.pop("in all tries, strict") == [2, 2]
    assert tries.pop("two ranks differently often") == [4, 1]
    assert set(map(tuple, tries.values())) == {(2, 1)}
    _, coverage, _, degraded, failed, troubles, _ = found["in all tries"][0]
    assert (degraded, failed, coverage) == (True, False, 28 / 30)  # the third batch is rank 1's only one of `short`
    assert troubles[1].startswith("ValueError: a strange sample at training.py:")
    metrics, _, _, _, failed, troubles, _ = found["in all tries, strict"][0]
    assert (metrics, failed, list(troubles)) == ({}, True, [2])
