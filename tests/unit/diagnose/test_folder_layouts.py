"""Logs in the folders in which launchers and tools leave them: ranks from paths, what is skipped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.diagnose.logs.file_names import actor_pid_in_name, rank_in_name
from holdfast.diagnose.pipeline import DiagnosisResult, diagnose

STEPS = "".join(f"step {step}/90 loss 2.0\n" for step in range(1, 5))
TRACE = (
    "Traceback (most recent call last):\n"
    "  File \"/job/train.py\", line 41, in step\n    use(x)\nKeyError: 'labels'\n"
)
CRASH = "Fatal Python error: Segmentation fault\n"
FAILED_ON_1 = {0: STEPS, 1: STEPS + TRACE, 2: STEPS, 3: STEPS}


def read(folder: Path, files: dict[str, str]) -> DiagnosisResult:
    """Return the diagnosis of a folder with these files."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return diagnose([str(folder)])


@pytest.mark.parametrize(
    "layout",
    [
        "none_x7k2/attempt_0/{}/stderr.log",
        "811234_{}.out",
        "train-811234.{}.err",
        "train_811234_{}.log",
        "logs/%x-811234-task{}.out",
        "rank{}/output.txt",
        "out/1/rank.{}/stdout",
        "logs/generation0/rank{}/stderr.log",
        "mlruns/0/5f3a/artifacts/logs/rank_{}.log",
    ],
)
def test_the_rank_is_that_of_the_path(tmp_path: Path, layout: str) -> None:
    files = {layout.format(rank): text for rank, text in FAILED_ON_1.items()}
    root = read(tmp_path, files).verdict.root
    assert root is not None
    assert (root.cause, root.subject.rank) == ("python-exception-on-one-rank", 1)


@pytest.mark.parametrize(
    "name",
    [
        "slurm-811234.out",
        "slurm-811234_3.out",  # a task of a job array
        "train-2026-03-01.log",
        "worker-0a1b2c3d4e5f-01000000-4711.err",
        "node-7.log",
        "run-20260301_120000-x7k2/files/output.log",
        "v1.2.3.log",
        "events.out.tfevents.1772323200.node.4711.0",
    ],
)
def test_other_numbers_are_no_rank(name: str) -> None:
    assert rank_in_name(name) is None


def test_the_files_of_ray_workers_have_the_ranks_of_their_processes(tmp_path: Path) -> None:
    files = {
        f"session_latest/logs/worker-0a1b2c3d4e{rank}f-01000000-{4700 + rank}.err": (
            ":job_id:01000000\n:actor_name:RayTrainWorker\n"
            f"Setting up process group for: env:// [rank={rank}, world_size=4]\n{text}"
        )
        for rank, text in FAILED_ON_1.items()
    }
    root = read(tmp_path, files).verdict.root
    assert root is not None
    assert (root.cause, root.subject.rank) == ("python-exception-on-one-rank", 1)
    assert actor_pid_in_name("worker-0a1b2c3d4e5f-01000000-4711.err") == 4711
    assert actor_pid_in_name("worker-3.err") is None


def test_torchruns_error_file_is_read(tmp_path: Path) -> None:
    error = {
        "message": {
            "message": "KeyError: 'labels'",
            "extraInfo": {"py_callstack": TRACE, "timestamp": "1772323200"},
        }
    }
    files = {f"none_x7k2/attempt_0/{rank}/stderr.log": STEPS for rank in range(4)}
    files["none_x7k2/attempt_0/2/error.json"] = json.dumps(error)
    root = read(tmp_path, files).verdict.root
    assert root is not None
    assert (root.cause, root.subject.rank, root.subject.line) == (
        "python-exception-on-one-rank",
        2,
        41,
    )


def test_own_files_and_logs_of_tools_are_named(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        {
            "run/facts.json": json.dumps(
                [{"text": 'Python: "3.11"', "origin": "/usr/bin/python", "rank": None}]
            ),
            "run/live-0.jsonl": '{"schema":"holdfast/live-series/1","at":1.0}\n' * 2,
            "run/ledger.jsonl": '{"event":"begun","at":1772323200.0,"host":"a","text":"train.py"}\n',
            "run/run.json": '{"schema": "holdfast/1", "run": "x"}',
            "run/logs/generation0/rank0/stdout.log": STEPS + "training finished\n",
            "wandb/run-1/logs/debug-internal.log": '{"time":"x","level":"ERROR","msg":"timeout"}\n',
            "wandb/run-1/files/config.yaml": "ddp_timeout:\n  value: 1800\n",
            "wandb/run-1/files/output.log": STEPS,
        },
    )
    assert {Path(item.name).name for item in found.read} == {"stdout.log", "output.log"}
    why = {Path(item.name).name: item.why for item in found.ignored}
    assert "written by holdfast" in why["facts.json"]
    assert "written by holdfast" in why["ledger.jsonl"]
    assert "written by holdfast" in why["live-0.jsonl"]
    assert "written by holdfast" in why["run.json"]
    assert "wandb itself" in why["debug-internal.log"]
    assert not any(item.lost for item in found.ignored)
    assert found.exit_status == 0


def test_remedies_repeat_the_command_of_the_run(tmp_path: Path) -> None:
    def run(folder: str, *script: str) -> dict[str, str]:
        command = {"launch_options": ["--nproc-per-node", "2"], "script": script}
        return {
            f"{folder}/command.json": json.dumps({"schema": "holdfast/1"} | command),
            f"{folder}/logs/generation0/rank0/stderr.log": STEPS,
            f"{folder}/logs/generation0/rank1/stderr.log": STEPS + CRASH,
        }

    def commands(found: DiagnosisResult) -> str:
        assert found.verdict.root is not None
        return "\n".join(remedy.command or "" for remedy in found.verdict.root.remedies)

    one = read(tmp_path / "one", run("a", "train.py", "--lr", "0.1"))
    assert "holdfast run --nproc-per-node 2" in commands(one)
    assert "train.py --lr 0.1" in commands(one)
    assert "SCRIPT" not in commands(one)
    two = read(tmp_path / "two", run("a", "train.py") | run("b", "other.py"))
    assert "SCRIPT" in commands(two)
