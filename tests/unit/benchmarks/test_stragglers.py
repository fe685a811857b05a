"""Simulated jobs of known truth, through real trace files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import stragglers
from benchmarks.simulated_job import simulate


@pytest.mark.parametrize(
    "scenario_of", [stragglers.slow_rank, stragglers.slow_link, stragglers.unlike_gpus]
)
def test_only_what_is_slow_is_accused(scenario_of, tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    scenario = scenario_of(random)
    times = simulate(scenario.model, random)
    found = stragglers.findings_of(tmp_path, scenario, times)
    truth = [scenario.truth] if scenario.truth is not None else []
    assert [stragglers.accusation(finding) for finding in found] == truth


def test_the_published_score_is_reference_time_over_own_time() -> None:
    random = np.random.default_rng(0)
    scenario = stragglers.slow_rank(random)
    (rank,) = scenario.truth.ranks
    relative, individual = stragglers.nvidia_scores(simulate(scenario.model, random))
    assert relative[rank] == pytest.approx(1 / scenario.model.speed[rank], rel=0.05)
    assert individual[rank] == pytest.approx(1.0, rel=0.05)
    assert np.delete(relative, rank).min() > 0.95
