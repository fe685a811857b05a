"""`holdfast submit slurm` on a real Slurm: requeue, preemption, node failure, time limit, refusal.

The job trains two ranks on two nodes. After each interruption it must resume where it saved.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.process.slurm_cluster import skip_without_slurm, slurm_cluster

skip_without_slurm()
SCRIPT = Path(__file__).with_name("preempted.py")
pytestmark = pytest.mark.timeout(300)


class Job:
    """A job submitted with ``holdfast submit slurm``, in its own folder."""

    def __init__(self, cluster, *options, steps=100_000, every=10_000):
        self.cluster = cluster
        self.folder = Path(tempfile.mkdtemp(dir=cluster.folder))
        words = (
            "--nodes",
            2,
            "--output=out",
            "--env=LOADER_WORKERS=0",
            *options,
            "--",
            "--spares",
            "off",
        )
        done = self.submit(*words, SCRIPT, steps, every, 0)
        assert done.returncode == 0, done.stderr
        (self.number,) = re.findall(r"submitted to Slurm: (\d+)", done.stdout)

    def submit(self, *words):
        return subprocess.run(
            [sys.executable, "-m", "holdfast", "submit", "slurm", *map(str, words)],
            cwd=self.folder,
            env=self.cluster.variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @property
    def output(self):
        path = self.folder / "out"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def gate_reports(self):
        reports = self.folder.glob("holdfast-runs/gate-*.report.txt")
        return "\n".join(path.read_text() for path in reports)

    @property
    def state(self):
        shown = self.cluster.query("scontrol", "show", "job", self.number)
        return next(word for word in shown if word.startswith("JobState=")).partition("=")[2]

    def wait_for(self, pattern, count=1, limit_s=90):
        """Wait until the output contains the pattern ``count`` times."""
        until = time.monotonic() + limit_s
        while len(found := re.findall(pattern, self.output)) < count:
            over = time.monotonic() > until or self.state == "COMPLETED"
            assert not over, f"{self.output}\nstate {self.state}\n{self.gate_reports}"
            time.sleep(0.5)
        return found

    def saved_step(self):
        folders = (self.folder / "ckpts").glob("step-*")
        return max(int(folder.name.removeprefix("step-")) for folder in folders)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as started:
        yield started


@pytest.fixture
def submitted(cluster):
    """Return a function that submits a job and waits for its tenth step; cancels it at the end."""
    jobs = []

    def submit(*options, **more):
        jobs.append(Job(cluster, *options, **more))
        jobs[-1].wait_for(r"rank \d step 10\b", count=2)
        return jobs[-1]

    yield submit
    for job in jobs:
        cluster.query("scancel", job.number)
        while job.state not in {"CANCELLED", "COMPLETED", "FAILED"}:
            time.sleep(0.2)


def assert_resumes(job):
    """Wait for the end of the first start; assert that the ranks resume at the saved step."""
    job.wait_for("holdfast: Slurm ended start 1|the time limit is near")
    step = job.saved_step()
    assert step >= 10
    job.wait_for(rf"rank \d resumed {step}\b", count=2)


@pytest.mark.slow
def test_a_requeued_job_saves_and_resumes(cluster, submitted):
    job = submitted()
    assert "failed the health gate" not in job.output
    cluster.query("scontrol", "requeue", job.number)
    assert_resumes(job)


@pytest.mark.matrix
def test_a_preempted_job_saves_and_resumes(cluster, submitted):
    job = submitted()
    cluster.query("sbatch", "--partition=urgent", "--exclusive", "-N2", "--wrap=sleep 1")
    assert_resumes(job)


@pytest.mark.matrix
def test_a_job_that_lost_a_node_resumes_from_its_last_checkpoint(cluster, submitted):
    job = submitted(every=10)
    node = ("scontrol", "update", "NodeName=127.0.0.2")
    cluster.query(*node, "State=DOWN", "Reason=test")
    job.wait_for("NODE FAILURE|NODE FAIL")
    cluster.query(*node, "State=RESUME")
    assert_resumes(job)


@pytest.mark.matrix
def test_a_job_saves_before_its_time_limit_and_requeues_itself(submitted):
    job = submitted("--time=2", "--warning=30s")
    job.wait_for("the time limit is near: job [0-9]+ is requeued after start 1", limit_s=180)
    assert_resumes(job)


@pytest.mark.matrix
def test_a_job_with_unhealthy_nodes_does_not_start(cluster):
    job = Job(cluster, "--checkpoints", "/etc/hostname")
    job.wait_for("[01] of 2 nodes are healthy: submit again with --exclude or --spare-nodes")
    assert "failed the health gate: see holdfast-runs/gate-" in job.output
    assert "generation 0" not in job.output


@pytest.mark.slow
def test_a_refusal_is_one_sentence(cluster):
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "submit", "slurm", "--partition=nowhere", SCRIPT],
        env=cluster.variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("holdfast: Slurm refused the job: ")
    assert "invalid partition specified: nowhere" in done.stderr
    assert done.stderr.count("\n") == 1
