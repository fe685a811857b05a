"""A rank that hangs in a checkpoint save is reported, although slow saves are tolerated."""

import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("saves.py")
TWO = ("--standalone", "--nproc-per-node", 2, "--max-restarts", 0, "--act-after", "5s")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("where", "least", "most"),
    [
        ("state", 5, 30),
        # The limit is learned from earlier saves; it is at least 60 s while a rank reports a save.
        pytest.param("thread", 60, 90, marks=pytest.mark.matrix),
    ],
)
def test_the_rank_that_hangs_in_a_save_is_reported(launch, tmp_path, where, least, most):
    job = launch(*TWO, "--json-report", "report.json", SCRIPT, where)
    assert job.process.wait(200) == 1, job.output
    assert "rank 1 hangs" in job.output
    report = json.loads((tmp_path / "report.json").read_text())
    root = report["verdict"]["root"]
    assert root["cause"] == "rank-missing-collective", job.output
    assert root["subject"]["rank"] == 1, job.output
    assert "checkpoint" in root["message"], job.output
    assert least <= report["incidents"][0]["detected_s"] <= most, job.output
