"""Slow ranks are reported while the job runs."""

from pathlib import Path

import pytest

from holdfast.core import ledger
from holdfast.core.failures import RecoveryAction

SCRIPT = Path(__file__).with_name("paced.py")
WINDOW = {"HOLDFAST_STRAGGLER_S": "6"}

pytestmark = pytest.mark.slow


def read_decisions(job):
    """Return action, cause and rank of each failure in the ledger."""
    past = ledger.past_failures(ledger.read_ledger(job.run))
    return [(each.decision.action, each.failure.cause, each.failure.rank) for each in past]


def test_a_slow_rank_is_reported_with_its_reason(launch, tmp_path):
    script = Path(__file__).with_name("slow_loader.py")
    job = launch("--nproc-per-node", 3, "--json-report", "report.json", script, tmp_path, **WINDOW)
    job.wait_for(
        r"rank 1 on \S+ is slower than the others, which wait \d\d% of the time for it; it\s+waits "
        r"\d+% of the time for its data\s+loader, the others \d+%"
    )
    (tmp_path / "enough").touch()
    assert job.end() == 0, job.output
    assert read_decisions(job) == [(RecoveryAction.REPORT, "straggler", 1)]
    assert "but --exclude-stragglers is not set" in job.output
    report = job.json("report.json")
    assert (report["status"], report["restarts"]) == (0, 0)
    assert Path(report["incidents"][0]["html"]).is_file()


@pytest.mark.matrix
def test_exclude_stragglers_excludes_its_host(launch, free_port, tmp_path):
    common = (
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"localhost:{free_port}",
        "--local-addr",
        "127.0.0.1",
        "--nnodes",
        "1:2",
        "--nproc-per-node",
        1,
        "--max-restarts",
        3,
        "--exclude-stragglers",
        "--rdzv-conf",
        "last_call_timeout=3",
        SCRIPT,
        tmp_path,
    )
    nodes = [launch(*common, folder=f"node{at}", LATE="1", **WINDOW) for at in (0, 1)]
    statuses = [node.end() for node in nodes]
    output = "\n".join(node.output for node in nodes)
    assert sorted(statuses) == [0, 1], output
    decisions = max((read_decisions(node) for node in nodes), key=len)
    assert [action for action, *_ in decisions] == [
        RecoveryAction.REPORT,
        RecoveryAction.EXCLUDE,
    ], output
    assert "will be excluded if it stays slow" in output
    assert "rank 0 of 1 is done" in output
