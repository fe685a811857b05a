"""Timeouts of one generation affect the next, are stored beside the runs, and are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.diagnose.pipeline import diagnose
from holdfast.watcher import history_facts

SCRIPT = Path(__file__).parent / "late_in_evaluation.py"


@pytest.mark.slow
def test_timeouts_are_counted_over_restarts_and_reported(launch, tmp_path):
    policy = tmp_path / "timeouts.toml"
    policy.write_text('evaluation = "2s"\n')
    job = launch(
        "--standalone",
        "--nproc-per-node",
        2,
        "--max-restarts",
        1,
        SCRIPT,
        HOLDFAST_TIMEOUTS=str(policy),
    )
    assert job.end() == 1
    runs = job.folder / "runs"
    history = history_facts.read_histories(runs / "history")
    (problem,) = history.troubles
    counts = (problem.timeouts, problem.absent, problem.runs, history.runs)
    assert counts == (2, 2, 2, 2), job.output
    assert problem.site.startswith("late_in_evaluation.py:")
    (run,) = (each for each in runs.iterdir() if each.name != "history")
    pages = [page.read_text() for page in sorted(run.glob("incidents/*/report.html"))]
    assert "2 timeouts (ranks missing in 2)" in pages[-1]
    facts = [fact.text for fact in diagnose([str(run)]).collectives]
    assert "in 2 of 2 runs: 2 timeouts (ranks missing in 2)" in facts[0]
    assert facts[1].startswith("timeout of all_reduce")
    assert "raised from 2.00 s to 4.0 s: 2 timeouts in 2 runs" in facts[1]
    assert "1 evaluation skipped after each" in facts[2]
