"""`holdfast submit`: options, files that are written, and errors in one sentence."""

from __future__ import annotations

import json

import pytest

from tests.unit.cli.in_process import run_holdfast

KUBERNETES = ("submit", "kubernetes", "--image", "i", "--claim", "c", "--dry-run")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").touch()
    return tmp_path


def test_dry_run_prints_the_script_and_write_saves_it(folder):
    done = run_holdfast(
        "submit",
        "slurm",
        "--nodes",
        4,
        "--nproc-per-node",
        8,
        "--time",
        "1:00:00",
        "--dry-run",
        "--write",
        "job.sh",
        "--",
        "--max-restarts",
        3,
        "train.py",
        "--nodes",
        5,
        folder=folder,
    )
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --nodes=4\n" in done.stdout
    assert "run=(--nproc-per-node 8 --max-restarts 3 train.py --nodes 5)\n" in done.stdout
    assert (folder / "job.sh").read_text() == done.stdout


def test_json(folder):
    done = run_holdfast("submit", "slurm", "--dry-run", "--json", "train.py", folder=folder)
    document = json.loads(done.stdout)
    assert (document["command"], document["scheduler"], document["job"]) == (
        "submit",
        "Slurm",
        None,
    )
    assert document["file"].startswith("#!/bin/bash\n")


@pytest.mark.parametrize("kind", ["jobset", "trainjob"])
def test_kubernetes(kind):
    done = run_holdfast(*KUBERNETES, "--kind", kind, "--nodes", 2, "/app/train.py")
    assert done.returncode == 0, done.stderr
    assert "- /app/train.py\n" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("slrum", "train.py"), "holdfast: unknown command 'slrum'; did you mean slurm?"),
        (
            ("slurm", "--", "--max-restart", "3", "--max-idel", "3", "train.py"),
            "holdfast: unknown option --max-idel; did you mean --max-idle or --max-failures?",
        ),
        (
            ("slurm", "trian.py"),
            "holdfast: cannot open trian.py: there is no such file; did you mean train.py?",
        ),
        (
            ("slurm", "--", "--nnodes", "2", "train.py"),
            "holdfast: invalid value for --nnodes: `holdfast submit` sets it for every node; use --nodes",
        ),
        (("slurm", "--", "--max-restarts", "3"), "holdfast: invalid the command line"),
        (
            ("slurm", "--warning", "soon", "train.py"),
            "holdfast: invalid value for --warning: 'soon' is not a duration",
        ),
        (
            ("slurm", "--env", "2=3", "train.py"),
            "holdfast: invalid value for --env: '2=3' is not NAME=VALUE",
        ),
        (
            ("slurm", "--dry-run", "--write", "nowhere/job.sh", "train.py"),
            "holdfast: cannot open nowhere/job.sh: its folder does not exist",
        ),
    ],
)
def test_mistakes_are_one_sentence(folder, words, message):
    done = run_holdfast("submit", *words, folder=folder, PATH="/nowhere")
    assert done.returncode == 2
    assert done.stderr.startswith(message.replace("invalid the", "invalid")), done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_modules_and_programs_need_no_file(folder):
    done = run_holdfast("submit", "slurm", "--dry-run", "--", "-m", "package.train", folder=folder)
    assert "#SBATCH --job-name=package-train\n" in done.stdout
