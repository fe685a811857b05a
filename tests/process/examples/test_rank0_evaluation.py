"""The example of an evaluation on rank 0: broken, it is diagnosed; fixed, it trains."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.in_process import run_holdfast

EXAMPLE = Path(__file__).parents[3] / "examples" / "rank0_evaluation"
LINE = next(
    number
    for number, line in enumerate((EXAMPLE / "broken.py").read_text().splitlines(), 1)
    if "evaluate(model.module)" in line
)


@pytest.mark.parametrize(("name", "lines"), [("broken.py", [LINE]), ("fixed.py", [])])
def test_lint_finds_the_broken_one_only(name, lines):
    done = run_holdfast("lint", "--no-cache", "--json", EXAMPLE / name)
    findings = json.loads(done.stdout)["findings"]
    assert [finding["subject"]["line"] for finding in findings] == lines


@pytest.mark.slow
@pytest.mark.parametrize(("name", "status"), [("broken.py", 1), ("fixed.py", 0)])
def test_run_names_the_cause_of_the_broken_one(name, status, tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "holdfast", "run", "--standalone", "--nproc-per-node", "2"]
    options = ["--run-dir", str(tmp_path), "--act-after", "5s", "--json-report", str(report)]
    done = subprocess.run(
        [*command, *options, str(EXAMPLE / name)], capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    root = json.loads(report.read_text())["verdict"]["root"] if status else None
    assert (root["cause"] if root else None) == ("rank-guarded-collective" if status else None)
    assert ("step 20: loss" in done.stdout) is not bool(status)
