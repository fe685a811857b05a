"""Time-outs of one generation are known in the next, kept beside the runs, and shown with the evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.actions.diagnose import diagnose
from holdfast.facts import collective_history

SCRIPT = Path(__file__).parent / "late_in_evaluation.py"


@pytest.mark.slow
def test_time_outs_are_counted_over_a_restart_and_shown(launch, tmp_path):
    limits = tmp_path / "limits.toml"
    limits.write_text('evaluation = "2s"\n')
    job = launch("--standalone", "--nproc-per-node", 2, "--max-restarts", 1, SCRIPT, HOLDFAST_TIMEOUTS=str(limits))
    assert job.end() == 1
    runs = job.folder / "runs"
    history = collective_history.read(runs / "history")
    (trouble,) = history.troubles
    assert (trouble.timeouts, trouble.absent, trouble.runs, history.runs) == (2, 2, 2, 2), job.output
    assert trouble.site.startswith("late_in_evaluation.py:")
    (run,) = (each for each in runs.iterdir() if each.name != "history")
    pages = [page.read_text() for page in sorted(run.glob("incidents/*/report.html"))]
    assert "2 time-outs (ranks did not come to 2)" in pages[-1]
    told = [fact.text for fact in diagnose([str(run)]).collectives]
    assert "in 2 of 2 runs: 2 time-outs (ranks did not come to 2)" in told[0]
    assert told[1].startswith("limit of all_reduce")
    assert "raised from 2.00 s to 4.0 s: 2 time-outs in 2 runs" in told[1]
    assert "1 evaluation left out after each" in told[2]
