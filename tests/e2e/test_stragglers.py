"""A rank that is slower than the others is named while the job runs; nobody is in an even one."""

import time
from pathlib import Path

import pytest

from holdfast.actions import ledger
from holdfast.actions.policy import Course

SCRIPT = Path(__file__).with_name("paced.py")
WINDOW = {"HOLDFAST_STRAGGLER_S": "6"}

pytestmark = pytest.mark.slow


def told(job):
    """Course, cause and rank of each failure in the ledger."""
    past = ledger.past(ledger.read(job.run))
    return [(each.decision.course, each.failure.cause, each.failure.rank) for each in past]


def test_a_slow_rank_is_named_and_nothing_is_done(launch, tmp_path):
    job = launch("--nproc-per-node", 3, "--json-report", "report.json", SCRIPT, tmp_path, LATE="1", **WINDOW)
    job.wait_for(r"rank 1 on \S+ is slower than the others, which wait \d\d% of the time for it")
    (tmp_path / "enough").touch()
    assert job.end() == 0, job.output
    assert told(job) == [(Course.REPORT, "straggler", 1)]
    assert "and --exclude-stragglers is not set" in job.output
    report = job.json("report.json")
    assert (report["status"], report["restarts"]) == (0, 0)
    assert Path(report["incidents"][0]["html"]).is_file()


def test_nobody_is_named_in_an_even_job(launch, tmp_path):
    job = launch("--nproc-per-node", 2, SCRIPT, tmp_path, HOLDFAST_STRAGGLER_S="9")
    job.wait_for("generation 0")
    time.sleep(14)  # a window, and what comes before its first slice
    (tmp_path / "enough").touch()
    assert job.end() == 0, job.output
    assert told(job) == []


@pytest.mark.matrix
def test_its_host_is_left_out_where_told_so(launch, free_port, tmp_path):
    common = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port}", "--local-addr", "127.0.0.1",
              "--nnodes", "1:2", "--nproc-per-node", 1, "--max-restarts", 3, "--exclude-stragglers",
              "--rdzv-conf", "last_call_timeout=3", SCRIPT, tmp_path)  # fmt: skip
    nodes = [launch(*common, folder=f"node{at}", LATE="1", **WINDOW) for at in (0, 1)]
    statuses = [node.end() for node in nodes]
    output = "\n".join(node.output for node in nodes)
    assert sorted(statuses) == [0, 1], output
    found = max((told(node) for node in nodes), key=len)
    assert [course for course, *_ in found] == [Course.REPORT, Course.EXCLUDE], output
    assert "is left out if it stays slow" in output
    assert "rank 0 of 1 is done" in output
