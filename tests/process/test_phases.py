"""The budget of a declared phase is its timeout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "phases.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "cause"),
    [pytest.param("1m", None, marks=pytest.mark.matrix), ("7s", "rank-missing-collective")],
)
def test_the_phase_limit_applies(tmp_path: Path, budget: str, cause: str | None) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "holdfast", "run", "--standalone", "--nproc-per-node", "2"]
    options = ["--act-after", "5s", "--json-report", str(report), "--run-dir", str(tmp_path)]
    done = subprocess.run(
        [*command, *options, str(SCRIPT), budget],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        cwd=tmp_path,
    )
    result = json.loads(report.read_text())
    root = result["verdict"]["root"]
    assert (root["cause"] if root else None) == cause, done.stderr
    assert done.returncode == (1 if cause else 0), done.stderr
    if root is not None:
        assert root["subject"]["rank"] == 1
        assert result["incidents"][0]["detected_s"] >= 7
