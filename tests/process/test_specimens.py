"""``holdfast run`` reports cause, rank and line of every specimen.

A sample of quick ones runs in every test run, with forked ranks, all of them in ``make matrix``, as
a user starts them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.specimens.expected import EXPECTED, PROCESSES, Ending, lines_accepted, place
from tests.process.launched import Launched

SAMPLE = ("shape_mismatch_silent",)
#: The longest specimen ends after 45 s; a loaded machine can be four times slower.
LIMIT_S = 220

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S + 30)]


def run_forked(name: str, folder: Path) -> tuple[int, dict[str, Any], str]:
    """Run a specimen with forked ranks; return exit status, report and output."""
    options = ["--standalone", "--nproc-per-node", PROCESSES, "--max-restarts", 0]
    options += ["--act-after", "5s", "--json-report", "report.json"]
    job = Launched(folder, *options, place(name), **dict(EXPECTED[name].environment))
    status = job.end(LIMIT_S)
    return status, job.json("report.json"), job.output


def run(name: str, folder: Path) -> tuple[int, dict[str, Any], str]:
    """Run a specimen under ``holdfast run``; return exit status, report and output."""
    report = folder / "report.json"
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "run",
        "--standalone",
        "--nproc-per-node",
        str(PROCESSES),
    ]
    options = ["--max-restarts", "0", "--act-after", "5s", "--run-dir", str(folder / "runs")]
    done = subprocess.run(
        [*command, *options, "--json-report", str(report), str(place(name))],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=folder,
        env={**os.environ, **dict(EXPECTED[name].environment)},
    )
    output = done.stdout + done.stderr
    assert report.exists(), output
    return done.returncode, json.loads(report.read_text()), output


def check_failure(name: str, status: int, report: dict[str, Any], output: str) -> None:
    """Assert the expected verdict on a specimen with a fault."""
    expected, root = EXPECTED[name], report["verdict"]["root"]
    assert status != 0, output
    assert root is not None, output
    assert root["cause"] in expected.causes, root
    assert root["subject"]["rank"] in expected.ranks, root
    if expected.names_line:
        assert Path(root["subject"]["file"]).name == place(name).name, root
        assert root["subject"]["line"] in lines_accepted(name), root
    assert root["remedies"], root
    assert root["cause"] in output
    (incident,) = report["incidents"]
    assert Path(incident["html"]).exists()


def check_success(status: int, report: dict[str, Any], output: str) -> None:
    """Assert that the job succeeded without errors or incidents."""
    assert status == 0, output
    assert report["verdict"]["root"] is None, report
    assert report["incidents"] == [], report
    assert [
        finding for finding in report["findings"] if finding["level"] in {"error", "unknown"}
    ] == [], report


def check(name: str, result: tuple[int, dict[str, Any], str]) -> None:
    """Compare the result of a specimen with the table."""
    status, report, output = result
    if EXPECTED[name].ending is Ending.WELL:
        check_success(status, report, output)
    else:
        check_failure(name, status, report, output)
    remaining = [
        trace
        for trace in Path("/dev/shm").glob("holdfast-*")
        if trace.name.endswith(Path(report["run_dir"]).name)
    ]
    assert remaining == [], "trace files were not removed"


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_specimens_gets_its_verdict(name, tmp_path):
    check(name, run_forked(name, tmp_path))


@pytest.mark.matrix
@pytest.mark.parametrize("name", EXPECTED)
def test_every_specimen_gets_its_verdict(name, tmp_path):
    check(name, run(name, tmp_path))
