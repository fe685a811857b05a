"""The recovery policy with real jobs: gloo, two ranks, `holdfast run`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.core import ledger
from holdfast.core.failures import RecoveryAction
from holdfast.launcher import past_runs
from holdfast.report import run_timeline
from tests.unit.host.gpus.recorded import answer, gpu

SCRIPT = Path(__file__).with_name("failing_trainer.py")
RUN = ("--nproc-per-node", 2, "--recorder", "python", "--backoff", "100ms")

pytestmark = pytest.mark.slow


def past(job):
    """Return the failures and decisions in the ledger."""
    return ledger.past_failures(ledger.read_ledger(job.run))


def actions(job):
    return [each.decision.action for each in past(job)]


def test_a_fault_that_recurs_at_the_same_step_skips_the_batch(launch):
    job = launch("--max-restarts", 9, "--skip-batches", *RUN, SCRIPT, "sample")
    assert job.end() == 0, job.output
    assert actions(job) == [RecoveryAction.RESTART] * 2
    second = past(job)[1].decision
    assert (second.adjustments.resume_before, second.adjustments.skips(13)) == (10, True)
    assert "done from 5 in 1 micro-batches" in job.output
    printed = subprocess.run(
        [sys.executable, "-m", "holdfast", "history", job.run],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "ValueError: bad sample" in printed
    assert "step 13, saved step 10" in printed
    assert "resume from a checkpoint before step 10, and skip that batch" in printed
    assert "run ended with status 0" in printed
    assert job.trace_files() == []


@pytest.mark.matrix
def test_a_resubmitted_job_uses_its_history(launch, tmp_path):
    again = (
        "--history",
        tmp_path / "kept",
        "--skip-batches",
        "--nproc-per-node",
        1,
        "--recorder",
        "python",
        SCRIPT,
        "sample",
        tmp_path / "saved.txt",
    )
    first = launch(*again, folder="first")
    assert first.end() == 1, first.output
    second = launch("--max-restarts", 1, *again, folder="second")
    assert second.end() == 0, second.output
    assert "1 failure of earlier runs of this job" in second.output
    (entry,) = past(second)
    assert "the same fault occurred once before" in entry.decision.reason
    assert (entry.decision.adjustments.resume_before, entry.decision.adjustments.skips(13)) == (
        10,
        True,
    )
    assert run_timeline.find_newest_run(tmp_path / "kept") == tmp_path / "kept"
    printed = [
        event.title
        for event in run_timeline.describe_records(ledger.read_ledger(tmp_path / "kept"))
    ]
    assert (
        sum("run started" in title for title in printed)
        == sum("ValueError: bad sample" in title for title in printed)
        == 2
    )
    assert past_runs.read_unfinished(tmp_path / "kept") == ()  # the job has succeeded


def test_restarts_without_progress_end_with_status_93(launch):
    job = launch(
        "--max-restarts", 99, "--max-idle", 2, "--json-report", "report.json", *RUN, SCRIPT, "idle"
    )
    assert job.end() == 93, job.output
    assert len(past(job)) <= 6
    assert "newest checkpoint: step 10" in past(job)[-1].decision.reason
    assert job.json("report.json")["status"] == 93


@pytest.mark.matrix
def test_max_failures_counts_failures_despite_progress(launch):
    job = launch("--max-failures", 2, "--window", "10m", *RUN, SCRIPT, "storm")
    assert job.end() == 93, job.output
    assert "3 failures within 10 min" in past(job)[-1].decision.reason
    assert [each.decision.status for each in past(job)] == [None, None, 93]


def test_out_of_memory_doubles_micro_batches_until_they_fit(launch):
    job = launch("--max-restarts", 9, *RUN, SCRIPT, "memory")
    assert job.end() == 0, job.output
    written = json.loads((job.run / "adjustments.json").read_text())
    assert (written["micro_batches"], written["fewer_from"]) == (4, 1013)
    assert "done from 10 in 4 micro-batches" in job.output
    assert "into 2 micro-batches; the global batch stays the same" in past(job)[0].decision.reason


@pytest.mark.matrix
def test_a_nan_loss_resumes_earlier_and_skips_the_batch(launch):
    job = launch("--max-restarts", 9, *RUN, SCRIPT, "nan")
    assert job.end() == 0, job.output
    (entry,) = past(job)
    assert (entry.decision.adjustments.resume_before, entry.decision.adjustments.loss_scale) == (
        12,
        0.5,
    )
    assert "resume from a checkpoint before step 12" in entry.decision.reason


@pytest.mark.matrix
def test_a_host_that_hangs_twice_is_suspected_then_to_be_excluded(launch):
    job = launch(
        "--max-restarts",
        9,
        "--act-after",
        "5s",
        *RUN,
        SCRIPT,
        "hang",
        HOLDFAST_STALL_S="2",
        HOLDFAST_FIRST_STEP_S="4",
    )
    assert job.end() == 0, job.output
    first, second = past(job)
    assert first.failure.rank == second.failure.rank == 1
    assert first.decision.suspects
    assert "should be excluded, but no other host is available" in second.decision.reason


@pytest.mark.matrix
def test_the_node_of_a_host_that_hangs_twice_is_excluded_if_one_node_suffices(
    launch, free_port, tmp_path
):
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
        "--recorder",
        "python",
        "--max-restarts",
        9,
        "--act-after",
        "5s",
        "--rdzv-conf",
        "last_call_timeout=3",
    )
    limits = {"HOLDFAST_STALL_S": "2", "HOLDFAST_FIRST_STEP_S": "6"}
    nodes = [
        launch(*common, SCRIPT, "hang", tmp_path / "saved.txt", folder=f"node{at}", **limits)
        for at in (0, 1)
    ]
    [node.end() for node in nodes]
    ledgers = [past(node) for node in nodes]
    assert max(map(len, ledgers)) >= 2, [node.output for node in nodes]
    second = max(ledgers, key=len)[1].decision
    assert second.action is RecoveryAction.EXCLUDE, second
    assert any("done from 10 in 1 micro-batches" in node.output for node in nodes), [
        node.output for node in nodes
    ]


# Host checks before a restart


def run_with_fake_driver(tmp_path, *arguments):
    """Run `holdfast run` with a fake NVIDIA driver whose nvidia-smi prints a file."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "nvidia-smi").write_text(f"#!/bin/sh\ncat {tmp_path}/report.xml\n")
    (programs / "nvidia-smi").chmod(0o755)
    (tmp_path / "report.xml").write_bytes(answer(gpu()))
    (tmp_path / "worse.xml").write_bytes(answer(gpu(errors=3)))
    within = 'mount -t tmpfs none /proc/driver && mkdir /proc/driver/nvidia && exec "$@"'
    command = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        within,
        "sh",
        sys.executable,
        "-m",
        "holdfast",
        "run",
        *arguments,
    ]
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOLDFAST_HEALTH_S": "0",
    }
    try:
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", within, "sh", "true"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        pytest.skip(f"unshare cannot be started: {error.strerror}")
    if done.returncode:
        pytest.skip(f"a namespace with a fake driver cannot be created: {done.stderr.strip()}")
    return subprocess.run(
        list(map(str, command)),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )


BREAKS = (
    "import os, shutil, sys\n"
    "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
    "    shutil.copy('worse.xml', 'report.xml')\n"
    "    sys.exit(3)\n"
    "print('came through', flush=True)\n"
)


def test_a_host_that_degraded_does_not_rejoin(tmp_path):
    # On a busy machine the driver may not answer within the gate's 4 s, which excludes no host.
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        (folder / "breaks.py").write_text(BREAKS)
        done = run_with_fake_driver(
            folder, "--max-restarts", 3, "--recorder", "python", "breaks.py"
        )
        if done.returncode == 1:
            break
    assert done.returncode == 1, done.stderr
    assert "GPU 0 had 3 uncorrectable memory errors since the job began (GPU002" in done.stderr
    assert "is excluded from the job" in done.stderr
    assert "Traceback" not in done.stderr
    (run,) = (path.parent for path in folder.glob("holdfast-runs/*/run.json"))
    events = [str(each.event) for each in ledger.read_ledger(run)]
    assert events == ["begun", "started", "failed", "refused", "ended"]


@pytest.mark.matrix
def test_a_degraded_host_rejoins_with_no_gate(tmp_path):
    (tmp_path / "breaks.py").write_text(BREAKS)
    done = run_with_fake_driver(
        tmp_path, "--no-gate", "--max-restarts", 3, "--recorder", "python", "breaks.py"
    )
    assert (done.returncode, "came through" in done.stdout) == (0, True), done.stderr
