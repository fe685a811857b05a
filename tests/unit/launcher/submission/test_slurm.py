"""The batch script: its directives and words, and how its fixed part acts on statuses."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from holdfast.core.errors import InvalidValue, MissingFile, SubmissionRefused
from holdfast.launcher.submission import programs
from holdfast.launcher.submission.request import JobRequest, default_name
from holdfast.launcher.submission.slurm import SlurmRequest, slurm_script, submit_to_slurm


def script(*, spare_nodes=0, requeue_failures=0, sbatch=(), **more):
    job = {
        "name": "train",
        "run_words": ("train.py", "--text", "a b"),
        "nodes": 2,
        "python": "python",
    }
    request = SlurmRequest(
        job=JobRequest(**{**job, **more}),
        spare_nodes=spare_nodes,
        requeue_failures=requeue_failures,
        sbatch=sbatch,
        exclude="n[3-4]",
    )
    return slurm_script(request)


def test_directives():
    lines = script(spare_nodes=1, sbatch=("--qos=high",), warning_s=300).splitlines()
    directives = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    assert directives == [
        *("--job-name=train", "--nodes=3", "--ntasks-per-node=1", "--exclude=n[3-4]"),
        *("--output=slurm-%j.out", "--open-mode=append", "--signal=B:USR1@300", "--requeue"),
        "--qos=high",
    ]
    assert "export HOLDFAST_GRACE_S=290" in lines


def test_words_are_quoted():
    assert "run=(--nproc-per-node 1 train.py --text 'a b')" in script().splitlines()


# A Slurm of shell functions on one host: what the script does after the job's status.
FAKE = """
scontrol() {{ if [ "$1" = show ]; then printf 'n1\\nn2\\n'; else echo "scontrol $*"; sleep() {{ :; }}; fi; }}
srun() {{ echo "srun $*" | cut -c1-200; {signal} return {status}; }}
"""


def run(folder, text, status, signal="", **variables):
    body = text.replace("\nrestarts=", FAKE.format(status=status, signal=signal) + "\nrestarts=", 1)
    environment = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "PATH": "/usr/bin:/bin",
        **variables,
    }
    return subprocess.run(
        ["bash", "-c", body],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize(
    ("status", "requeues", "restarts", "requeued"),
    [
        (0, 9, "", False),
        (93, 9, "", False),
        (1, 0, "", False),
        (1, 2, "1", True),
        (1, 2, "2", False),
    ],
)
def test_failures_are_requeued_within_the_limit(tmp_path, status, requeues, restarts, requeued):
    done = run(
        tmp_path,
        script(gate=False, requeue_failures=requeues),
        status,
        SLURM_RESTART_COUNT=restarts,
    )
    assert done.returncode == status
    assert ("scontrol requeue 7" in done.stdout) == requeued, done.stderr


def test_the_warning_requeues_the_job(tmp_path):
    done = run(tmp_path, script(gate=False), 138, signal="kill -USR1 $$; sleep 0.2;")
    assert done.returncode == 138
    assert "scontrol requeue 7" in done.stdout
    assert "the time limit is near: job 7 is requeued after start 1" in done.stderr


def test_a_job_that_slurm_ends_does_not_requeue_itself(tmp_path):
    done = run(
        tmp_path, script(gate=False, requeue_failures=9), 143, signal="kill -TERM $$; sleep 0.2;"
    )
    assert done.returncode == 143
    assert "requeue 7" not in done.stdout
    assert "Slurm ended start 1 of the job" in done.stderr


def gate_that_passes(*hosts):
    """Return shell code that acts as `holdfast check --hosts-file` on the first node."""
    lines = "".join(f"{host}\n" for host in hosts)
    lists = f"printf %s {shlex.quote(lines)} >holdfast-runs/gate-7.passing.txt"
    return f'case "$*" in *" check "*) {lists}; echo n1 >holdfast-runs/gate-7.failing.txt;; esac;'


def test_a_spare_node_replaces_an_unhealthy_one(tmp_path):
    done = run(tmp_path, script(spare_nodes=1), 0, signal=gate_that_passes("n2", "n3"))
    assert done.returncode == 0, done.stderr
    assert "--nodelist=n2,n3" in done.stdout
    assert "n1 failed the health gate: see holdfast-runs/gate-7.report.txt" in done.stderr


def test_too_few_healthy_nodes_end_the_job(tmp_path):
    done = run(tmp_path, script(), 0, signal=gate_that_passes("n2"))
    assert done.returncode == 1
    assert "1 of 2 nodes are healthy: submit again with --exclude or --spare-nodes" in done.stderr
    assert "nodelist" not in done.stdout


def test_a_gate_without_result_ends_the_job(tmp_path):
    done = run(tmp_path, script(), 1)
    assert done.returncode == 1
    assert "the health gate did not finish" in done.stderr


# Submission


def program(folder, monkeypatch, text):
    path = folder / "sbatch"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_the_number_of_the_job(tmp_path, monkeypatch):
    program(tmp_path, monkeypatch, "cat >got; echo '42;cluster'")
    monkeypatch.chdir(tmp_path)
    assert submit_to_slurm("#!/bin/bash\n") == "42"
    assert (tmp_path / "got").read_text() == "#!/bin/bash\n"


def test_a_refusal_has_slurms_reason(tmp_path, monkeypatch):
    program(
        tmp_path, monkeypatch, "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1"
    )
    with pytest.raises(
        SubmissionRefused, match=r"Slurm refused the job: invalid partition specified: x;"
    ):
        submit_to_slurm("")


def test_a_controller_that_does_not_answer(tmp_path, monkeypatch):
    program(tmp_path, monkeypatch, "exec sleep 60")
    monkeypatch.setattr(programs, "TIMEOUT_S", 0.2)
    with pytest.raises(SubmissionRefused, match="sbatch did not answer within"):
        submit_to_slurm("")


def test_a_host_without_slurm(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        MissingFile, match="no such program on PATH; submit on a host of the cluster"
    ):
        submit_to_slurm("")


# Requests


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Train_1"}, "invalid value for --name: 'Train_1' does not consist of"),
        ({"warning_s": 5}, "invalid value for --warning: 5 s is too short"),
        ({"sbatch": ("qos=high",)}, "invalid value for --sbatch: 'qos=high' is not an option"),
    ],
)
def test_invalid_requests(changes, message):
    with pytest.raises(InvalidValue, match=message):
        script(**changes)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a/Train_7b.py", "train-7b"),
        ("7.py", "train"),
        ("pkg.module", "pkg-module"),
        ("--.py", "train"),
    ],
)
def test_default_names(path, name):
    assert default_name(path) == name
