"""Every specimen is run for real under ``holdfast run``, and the verdict names its cause, its rank and its line.

A few quick ones run in every test run, all of them in ``make matrix``.
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

SAMPLE = ("swallowed_exception", "shape_mismatch_silent", "python_exception")
LIMIT_S = 220  # the longest specimen ends by itself after 45 s, and other work may make all of it four times slower

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S + 30)]


def run(name: str, folder: Path) -> tuple[int, dict[str, Any], str]:
    """The exit status of ``holdfast run`` on a specimen, its report, and what it said on the way."""
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
    said = done.stdout + done.stderr
    assert report.exists(), said
    return done.returncode, json.loads(report.read_text()), said


def check_failure(name: str, status: int, report: dict[str, Any], said: str) -> None:
    """The verdict on a specimen with a fault."""
    expected, root = EXPECTED[name], report["verdict"]["root"]
    assert status != 0, said
    assert root is not None, said
    assert root["cause"] in expected.causes, root
    assert root["subject"]["rank"] in expected.ranks, root
    if expected.names_line:
        assert Path(root["subject"]["file"]).name == place(name).name, root
        assert root["subject"]["line"] in lines_accepted(name), root
    assert root["remedies"], root
    assert root["cause"] in said
    (incident,) = report["incidents"]
    assert Path(incident["html"]).exists()


def check_peace(status: int, report: dict[str, Any], said: str) -> None:
    """Nothing failed, and nothing was said to have."""
    assert status == 0, said
    assert report["verdict"]["root"] is None, report
    assert report["incidents"] == [], report
    assert [
        finding for finding in report["findings"] if finding["level"] in {"error", "unknown"}
    ] == [], report


def check(name: str, folder: Path) -> None:
    """Runs a specimen and holds what became of it to the table."""
    status, report, said = run(name, folder)
    if EXPECTED[name].ending is Ending.WELL:
        check_peace(status, report, said)
    else:
        check_failure(name, status, report, said)
    left = [
        box
        for box in Path("/dev/shm").glob("holdfast-*")
        if box.name.endswith(Path(report["run_dir"]).name)
    ]
    assert left == [], "trace files stayed behind"


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_specimens_gets_its_verdict(name, tmp_path):
    check(name, tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize("name", EXPECTED)
def test_every_specimen_gets_its_verdict(name, tmp_path):
    check(name, tmp_path)
