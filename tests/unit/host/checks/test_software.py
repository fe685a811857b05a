"""Fingerprints of packages and code: equal for equal content, different if one byte differs."""

import importlib.metadata
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from holdfast.host import source_fingerprint
from holdfast.host.checks import CheckContext
from holdfast.host.checks.system.software import environment_fingerprint, inspect
from holdfast.host.source_fingerprint import fingerprint_source

from .trees import host


def test_this_environment():
    result = inspect(CheckContext())
    assert result.executable == sys.executable
    assert result.packages["torch"] == importlib.metadata.version("torch")
    assert result.fingerprint == inspect(CheckContext()).fingerprint
    assert result.facts()[0].text.startswith(f"software: fingerprint {result.fingerprint}, Python ")


def test_one_version_changes_the_fingerprint():
    assert environment_fingerprint("3.11", {"a": "1", "b": "2"}) == environment_fingerprint(
        "3.11", {"b": "2", "a": "1"}
    )
    assert (
        len(
            {
                environment_fingerprint("3.11", {"a": "1"}),
                environment_fingerprint("3.11", {"a": "2"}),
                environment_fingerprint("3.12", {"a": "1"}),
            }
        )
        == 3
    )


def test_a_package_installed_twice(tmp_path):
    files = {
        "/opt/a/numpy-2.1.0.dist-info/METADATA": "",
        "/opt/b/numpy-1.26.4.dist-info/METADATA": "",
        "/opt/b/click-8.1.7.dist-info/METADATA": "",
    }
    result = inspect(host(tmp_path, files, environ={"PYTHONPATH": "/opt/a:/opt/b:/opt/c"}))
    assert result.packages == {"click": "8.1.7", "numpy": "2.1.0"}
    assert [(package.name, package.versions) for package in result.duplicates] == [
        ("numpy", ("2.1.0", "1.26.4"))
    ]
    assert result.code is None


@pytest.fixture
def project(tmp_path):
    for name in (
        "train.py",
        "model/net.py",
        ".hidden/x.py",
        "venv/y.py",
        "own/pyvenv.cfg",
        "own/z.py",
        "notes.txt",
    ):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"# {name}\n")
    return tmp_path


def test_the_code_of_a_folder(project):
    first = fingerprint_source(project)
    assert (first.files, first.commit) == (2, "")
    (project / "notes.txt").write_text("other")
    (project / "venv/y.py").write_text("other")
    assert fingerprint_source(project) == first
    (project / "model/net.py").write_text("# model/net.py \n")
    assert fingerprint_source(project).fingerprint != first.fingerprint


def test_a_repository_has_a_commit(project):
    def git(*words):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.invalid")
        return subprocess.run(
            ["git", *identity, *words], cwd=project, capture_output=True, text=True, check=True
        ).stdout

    git("init", "-q")
    assert fingerprint_source(project).commit == ""
    git("add", "train.py")
    git("commit", "-qm", "first")
    head = git("rev-parse", "HEAD").strip()
    result = fingerprint_source(project / "model")
    assert (result.commit, result.folder) == (head, str(project))
    git("pack-refs", "--all")
    assert fingerprint_source(project).commit == head
    git("worktree", "add", "-q", "tree")
    assert fingerprint_source(project / "tree").commit == head
    git("checkout", "-q", "--detach")
    assert fingerprint_source(project).commit == head


def test_too_large_a_folder_has_no_fingerprint(project, monkeypatch):
    monkeypatch.setattr(source_fingerprint, "MAX_FILES", 1)
    assert fingerprint_source(project).fingerprint == ""
    assert fingerprint_source(project).why_not == "too much code to hash"
    assert fingerprint_source(project / ".hidden").files == 1


def test_a_folder_without_code(tmp_path):
    assert fingerprint_source(tmp_path).why_not == "no Python files"


@pytest.mark.skipif(os.geteuid() != 0, reason="creating another user's folders requires root")
def test_inaccessible_folders_are_skipped():
    script = (
        "import os, sys; from pathlib import Path; from holdfast.host.source_fingerprint import fingerprint_source\n"
        "os.setgid(65534); os.setuid(65534); print(fingerprint_source(Path(sys.argv[1])).files)"
    )
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        project.chmod(0o755)
        (project / "closed").mkdir(mode=0o700)
        for name in ("train.py", "closed/x.py"):
            (project / name).write_text("")
        done = subprocess.run(
            [sys.executable, "-c", script, folder], capture_output=True, text=True, check=False
        )
    assert done.stdout == "1\n", done.stderr
