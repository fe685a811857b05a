"""A rank that pauses is suspected within seconds; by default the job is acted on after 60 s."""

import time
from pathlib import Path

import psutil
import pytest

SCRIPT = Path(__file__).with_name("pauses.py")
ONCE = ("--nproc-per-node", 2, "--recorder", "python", "--json-report", "report.json")
RUN = (*ONCE, "--max-restarts", 1)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("what", "function"),
    [
        ("retry", "pause()"),
        pytest.param("snapshot", "write_snapshot()", marks=pytest.mark.matrix),
    ],
)
def test_a_pausing_rank_is_suspected_and_the_job_completes(launch, what, function):
    job = launch(*RUN, SCRIPT, what).wait_for("rank 0 pauses")
    start = time.monotonic()
    job.wait_for("suspected hang")
    assert time.monotonic() - start < 10
    assert job.end() == 0, job.output
    (suspicion,) = (line for line in job.output.splitlines() if "suspected hang" in line)
    assert "rank 0 never entered all_reduce" in suspicion
    assert "pauses.py:" in suspicion
    assert function in suspicion
    assert "SYNC002 rank-missing-collective" in suspicion
    assert job.output.count("suspicion withdrawn: the job advanced after") == 1, job.output
    assert job.output.index("suspicion withdrawn") < job.output.index("rank 0 done")
    assert job.output.count("rank 0 pauses") == 1
    report = job.json("report.json")
    assert (report["status"], report["restarts"], report["incidents"]) == (0, 0, [])


def test_a_stopped_rank_is_acted_on_at_once(launch):
    job = launch(*RUN, SCRIPT, "stop").wait_for("rank 0 pauses")
    start = time.monotonic()
    job.wait_for("holdfast: generation 1")
    assert time.monotonic() - start < 20
    assert job.end() == 0, job.output
    assert "suspected hang" not in job.output
    (incident,) = job.json("report.json")["incidents"]
    assert (incident["verdict"]["root"]["cause"], incident["decision"]) == (
        "rank-stopped",
        "restart",
    )


def test_a_stopped_rank_of_a_job_without_restarts_may_be_resumed(launch):
    job = launch(*ONCE, "--max-restarts", 0, SCRIPT, "stop").wait_for("suspected hang")
    (stopped,) = [each for each in job.family() if each.status() == psutil.STATUS_STOPPED]
    stopped.resume()
    assert job.end() == 0, job.output
    assert "PROC007 rank-stopped" in job.output
    assert "suspicion withdrawn: the job advanced after" in job.output
    assert job.json("report.json")["incidents"] == []


@pytest.mark.matrix
def test_act_after_sets_the_delay_before_acting(launch):
    job = launch(*RUN, "--act-after", "12s", SCRIPT, "sleep").wait_for("suspected hang")
    assert "until 12 s without progress (--act-after)" in job.output
    assert job.end() == 0, job.output
    assert "suspicion withdrawn" not in job.output
    (incident,) = job.json("report.json")["incidents"]
    assert (incident["verdict"]["root"]["cause"], incident["decision"]) == (
        "rank-missing-collective",
        "restart",
    )
    assert 12 <= incident["detected_s"] < 20
