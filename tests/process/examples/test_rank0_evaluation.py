"""The example of an evaluation on rank 0: broken, it is diagnosed; fixed, it trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.process.launched import Launched
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
    options = ["--standalone", "--nproc-per-node", 2, "--act-after", "5s"]
    job = Launched(tmp_path, *options, "--json-report", "report.json", EXAMPLE / name)
    assert job.end() == status, job.output
    root = job.json("report.json")["verdict"]["root"] if status else None
    assert (root["cause"] if root else None) == ("rank-guarded-collective" if status else None)
    assert ("step 20: loss" in job.output) is not bool(status)
