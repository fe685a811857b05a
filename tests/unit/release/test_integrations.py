"""The GitHub Action and the pre-commit hook, run in a clean clone, and the release files."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
BAD = "import torch.distributed as dist\n\nif dist.get_rank() == 0:\n    dist.barrier()\n"


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """Return a clean clone, and variables with which `holdfast` runs its sources."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    folder = tmp_path_factory.mktemp("clone")
    command = [
        "git",
        "clone",
        "--quiet",
        "--depth",
        "1",
        f"file://{ROOT}",
        str(folder / "holdfast"),
    ]
    subprocess.run(command, check=True)
    (folder / "bin").mkdir()
    program = folder / "bin" / "holdfast"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    program.chmod(0o755)
    variables = {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(folder / "holdfast" / "src"),
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    return folder / "holdfast", os.environ | variables


@pytest.fixture
def project(tmp_path):
    (tmp_path / "train.py").write_text(BAD)
    return tmp_path


@pytest.mark.slow
def test_the_pre_commit_hook_finds_a_deadlock(clone, project):
    folder, variables = clone
    (hook,) = yaml.safe_load((folder / ".pre-commit-hooks.yaml").read_text())
    done = subprocess.run(
        shlex.split(hook["entry"]),
        cwd=project,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "train.py:4" in done.stdout


@pytest.mark.slow
def test_the_action_writes_sarif_and_fails_at_its_end(clone, project):
    folder, variables = clone
    action = yaml.safe_load((folder / "action.yml").read_text())
    steps = {step["name"]: step for step in action["runs"]["steps"] if "name" in step}
    variables = variables | {
        "RUNNER_TEMP": str(project),
        "GITHUB_OUTPUT": str(project / "output"),
        "PATHS": "train.py",
        "ARGUMENTS": "--no-cache",
    }

    def run(step, **more):
        command = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]
        return subprocess.run(
            command, cwd=project, env=variables | more, capture_output=True, text=True, check=False
        )

    linted = run(steps["Lint"])
    assert linted.returncode == 0, linted.stderr
    outputs = dict(line.split("=", 1) for line in (project / "output").read_text().splitlines())
    (results,) = json.loads(Path(outputs["sarif"]).read_text())["runs"]
    (result,) = results["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"].endswith("train.py")
    assert place["region"]["startLine"] == 4
    assert run(steps["Fail if there are findings"], STATUS=outputs["status"]).returncode == 1
    assert run(steps["Lint"], PATHS="missing.py").returncode == 2


def test_the_release_workflow_builds_with_targets_that_exist():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    commands = [
        step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step
    ]
    targets = {words[1] for words in map(str.split, commands) if words[0] == "make"}
    assert targets == {"lint", "wheel", "man"}
    for target in targets:
        assert f"\n{target}: " in (ROOT / "Makefile").read_text()
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["jobs"]["publish"]["permissions"]["id-token"] == "write"


def test_the_image_copies_files_that_exist_and_runs_as_a_user():
    lines = [
        line.split() for line in (ROOT / "Dockerfile").read_text().splitlines() if line.strip()
    ]
    copied = [
        word
        for line in lines
        if line[0] == "COPY" and "--from=build" not in line
        for word in line[1:-1]
    ]
    assert copied
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in (ROOT / ".dockerignore").read_text().split()
    words = [line[0] for line in lines]
    assert words.count("FROM") == 2
    assert words.index("USER") < words.index("ENTRYPOINT")


@pytest.mark.parametrize("repository", ["", "owner/holdfast"])
def test_the_metadata_links_to_the_repository_that_builds(repository):
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "metadata"],
        cwd=ROOT,
        env=os.environ | {"GITHUB_REPOSITORY": repository},
        capture_output=True,
        text=True,
        check=True,
    )
    links = json.loads(done.stdout).get("urls", {})
    assert ("https://github.com/owner/holdfast/issues" in links.values()) is bool(repository)
    assert bool(links) is bool(repository)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_suggests_commands_and_options(shell):
    words = {"COMP_WORDS": "holdfast lint --exp", "COMP_CWORD": "2" if shell != "fish" else "--exp"}
    done = subprocess.run(
        [sys.executable, "-c", "from holdfast.cli import main; main()"],
        env=os.environ | words | {"_HOLDFAST_COMPLETE": f"{shell}_complete"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "--explain" in done.stdout, done.stderr
