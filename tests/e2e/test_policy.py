"""What real jobs are spared, and what they are given, by the policy: gloo, two ranks, `holdfast run`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.actions import ledger, past_runs, story
from holdfast.actions.policy import Course
from tests.facts.gpus.recorded import answer, gpu

SCRIPT = Path(__file__).with_name("fails_as_told.py")
RUN = ("--nproc-per-node", 2, "--recorder", "python", "--backoff", "100ms")

pytestmark = pytest.mark.slow


def past(job):
    """The failures and decisions in the ledger."""
    return ledger.past(ledger.read(job.run))


def courses(job):
    return [each.decision.course for each in past(job)]


def test_the_same_fault_at_the_same_step_is_not_just_tried_again(launch):
    job = launch("--max-restarts", 9, "--skip-batches", *RUN, SCRIPT, "sample")
    assert job.end() == 0, job.output
    assert courses(job) == [Course.RESTART] * 2
    second = past(job)[1].decision
    assert (second.adjustments.resume_before, second.adjustments.skips(13)) == (10, True)
    assert "done from 5 in 1 pieces" in job.output
    told = subprocess.run([sys.executable, "-m", "holdfast", "history", job.run], capture_output=True, text=True,
                          check=True).stdout  # fmt: skip
    assert "ValueError: bad sample" in told
    assert "step 13, saved step 10" in told
    assert "resume from a checkpoint before step 10, and leave out that batch" in told
    assert "run ends with status 0" in told
    assert job.boxes() == []


def test_a_job_that_is_started_again_goes_on_with_its_history(launch, tmp_path):
    again = ("--history", tmp_path / "kept", "--skip-batches", "--nproc-per-node", 1, "--recorder", "python", SCRIPT,
             "sample", tmp_path / "saved.txt")  # fmt: skip
    first = launch(*again, folder="first")
    assert first.end() == 1, first.output
    second = launch("--max-restarts", 1, *again, folder="second")
    assert second.end() == 0, second.output
    assert "1 failure of earlier runs of this job" in second.output
    (entry,) = past(second)
    assert "the same happened once before" in entry.decision.reason
    assert (entry.decision.adjustments.resume_before, entry.decision.adjustments.skips(13)) == (10, True)
    assert story.newest(tmp_path / "kept") == tmp_path / "kept"
    told = [event["title"] for event in story.story(ledger.read(tmp_path / "kept"))]
    assert sum("run begins" in title for title in told) == sum("ValueError: bad sample" in title for title in told) == 2
    assert past_runs.unfinished(tmp_path / "kept") == ()  # the job is done: what comes now is another one


def test_restarts_without_progress_end_with_a_status_of_their_own(launch):
    job = launch("--max-restarts", 99, "--max-idle", 2, "--json-report", "report.json", *RUN, SCRIPT, "idle")
    assert job.end() == 93, job.output
    assert len(past(job)) <= 6
    assert "the newest checkpoint is of step 10" in past(job)[-1].decision.reason
    assert job.json("report.json")["status"] == 93


def test_failures_within_a_window_are_counted_though_each_start_gets_further(launch):
    job = launch("--max-failures", 2, "--window", "10m", *RUN, SCRIPT, "storm")
    assert job.end() == 93, job.output
    assert "3 failures within 10 min" in past(job)[-1].decision.reason
    assert [each.decision.status for each in past(job)] == [None, None, 93]


def test_out_of_memory_gives_smaller_pieces_until_they_fit(launch):
    job = launch("--max-restarts", 9, *RUN, SCRIPT, "memory")
    assert job.end() == 0, job.output
    written = json.loads((job.run / "adjustments.json").read_text())
    assert (written["micro_batches"], written["fewer_from"]) == (4, 1013)
    assert "done from 10 in 4 pieces" in job.output
    assert "in 2 pieces, the global batch stays the same" in past(job)[0].decision.reason


def test_a_loss_that_is_nan_goes_back_and_past_the_batch(launch):
    job = launch("--max-restarts", 9, *RUN, SCRIPT, "nan")
    assert job.end() == 0, job.output
    (entry,) = past(job)
    assert (entry.decision.adjustments.resume_before, entry.decision.adjustments.loss_scale) == (12, 0.5)
    assert "back to a checkpoint before step 12" in entry.decision.reason


def test_a_host_that_hangs_twice_is_suspect_then_named_for_exclusion(launch):
    job = launch("--max-restarts", 9, *RUN, SCRIPT, "hang", HOLDFAST_STALL_S="2", HOLDFAST_FIRST_STEP_S="4")
    assert job.end() == 0, job.output
    first, second = past(job)
    assert first.failure.rank == second.failure.rank == 1
    assert first.decision.suspects
    assert "should be left out, and no other host stands by" in second.decision.reason


def test_the_node_of_a_host_that_hangs_twice_is_left_out_where_another_is_enough(launch, free_port, tmp_path):
    common = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port}", "--local-addr", "127.0.0.1",
              "--nnodes", "1:2", "--nproc-per-node", 1, "--recorder", "python", "--max-restarts", 9,
              "--rdzv-conf", "last_call_timeout=3")  # fmt: skip
    given = {"HOLDFAST_STALL_S": "2", "HOLDFAST_FIRST_STEP_S": "6"}
    nodes = [launch(*common, SCRIPT, "hang", tmp_path / "saved.txt", folder=f"node{at}", **given) for at in (0, 1)]
    [node.end() for node in nodes]
    ledgers = [past(node) for node in nodes]
    assert max(map(len, ledgers)) >= 2, [node.output for node in nodes]
    second = max(ledgers, key=len)[1].decision
    assert second.course is Course.EXCLUDE, second
    assert any("done from 10 in 1 pieces" in node.output for node in nodes), [node.output for node in nodes]


# The gate


def small_host(tmp_path, *arguments):
    """`holdfast run` where a driver of NVIDIA's seems to be, whose nvidia-smi says what is in a file."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "nvidia-smi").write_text(f"#!/bin/sh\ncat {tmp_path}/told.xml\n")
    (programs / "nvidia-smi").chmod(0o755)
    (tmp_path / "told.xml").write_bytes(answer(gpu()))
    (tmp_path / "worse.xml").write_bytes(answer(gpu(errors=3)))
    within = 'mount -t tmpfs none /proc/driver && mkdir /proc/driver/nvidia && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", within, "sh", sys.executable, "-m", "holdfast", "run", *arguments]
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "HOLDFAST_HEALTH_S": "0"}
    try:
        done = subprocess.run(["unshare", "--mount", "sh", "-c", within, "sh", "true"], capture_output=True, text=True,
                              check=False)  # fmt: skip
    except OSError as error:
        pytest.skip(f"unshare cannot be started: {error.strerror}")
    if done.returncode:
        pytest.skip(f"no name space with a driver can be made: {done.stderr.strip()}")
    return subprocess.run(list(map(str, command)), cwd=tmp_path, env=environment, capture_output=True, text=True,
                          check=False, timeout=90)  # fmt: skip


BREAKS = (
    "import os, shutil, sys\n"
    "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
    "    shutil.copy('worse.xml', 'told.xml')\n"
    "    sys.exit(3)\n"
    "print('came through', flush=True)\n"
)


def test_a_host_that_went_bad_does_not_rejoin(tmp_path):
    (tmp_path / "breaks.py").write_text(BREAKS)
    done = small_host(tmp_path, "--max-restarts", 3, "--recorder", "python", "breaks.py")
    assert done.returncode == 1, done.stderr
    assert "GPU 0 has had 3 uncorrectable memory errors since the job began (GPU002" in done.stderr
    assert "does not take part in the job" in done.stderr
    assert "Traceback" not in done.stderr
    (run,) = (path.parent for path in tmp_path.glob("holdfast-runs/*/run.json"))
    events = [str(each.event) for each in ledger.read(run)]
    assert events == ["begun", "started", "failed", "refused", "ended"]


@pytest.mark.matrix
def test_without_the_gate_it_does(tmp_path):
    (tmp_path / "breaks.py").write_text(BREAKS)
    done = small_host(tmp_path, "--no-gate", "--max-restarts", 3, "--recorder", "python", "breaks.py")
    assert (done.returncode, "came through" in done.stdout) == (0, True), done.stderr
