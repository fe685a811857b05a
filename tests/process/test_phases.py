"""The budget of a declared phase is its timeout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.launched import Launched

SCRIPT = Path(__file__).parent / "phases.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "cause"),
    [pytest.param("1m", None, marks=pytest.mark.matrix), ("7s", "rank-missing-collective")],
)
def test_the_phase_limit_applies(tmp_path: Path, budget: str, cause: str | None) -> None:
    options = ["--standalone", "--nproc-per-node", 2, "--act-after", "5s"]
    job = Launched(tmp_path, *options, "--json-report", "report.json", SCRIPT, budget)
    status = job.end()
    result = job.json("report.json")
    root = result["verdict"]["root"]
    assert (root["cause"] if root else None) == cause, job.output
    assert status == (1 if cause else 0), job.output
    if root is not None:
        assert root["subject"]["rank"] == 1
        assert result["incidents"][0]["detected_s"] >= 7
