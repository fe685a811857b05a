"""Fingerprints of packages and of code: equal where these are, and different where one byte is."""

import importlib.metadata
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from holdfast.facts import source_tree
from holdfast.facts.checks import Place
from holdfast.facts.checks.software import fingerprint, look
from holdfast.facts.source_tree import code

from .trees import host


def test_this_environment():
    seen = look(Place())
    assert seen.executable == sys.executable
    assert seen.packages["torch"] == importlib.metadata.version("torch")
    assert seen.fingerprint == look(Place()).fingerprint
    assert seen.facts()[0].text.startswith(f"software: {seen.fingerprint} of Python ")


def test_one_version_changes_the_fingerprint():
    assert fingerprint("3.11", {"a": "1", "b": "2"}) == fingerprint("3.11", {"b": "2", "a": "1"})
    assert len({fingerprint("3.11", {"a": "1"}), fingerprint("3.11", {"a": "2"}), fingerprint("3.12", {"a": "1"})}) == 3


def test_a_package_that_is_there_twice(tmp_path):
    files = {"/opt/a/numpy-2.1.0.dist-info/METADATA": "", "/opt/b/numpy-1.26.4.dist-info/METADATA": "",
             "/opt/b/click-8.1.7.dist-info/METADATA": ""}  # fmt: skip
    seen = look(host(tmp_path, files, environ={"PYTHONPATH": "/opt/a:/opt/b:/opt/c"}))
    assert seen.packages == {"click": "8.1.7", "numpy": "2.1.0"}
    assert [(each.name, each.versions) for each in seen.twice] == [("numpy", ("2.1.0", "1.26.4"))]
    assert seen.code is None


@pytest.fixture
def project(tmp_path):
    for name in ("train.py", "model/net.py", ".hidden/x.py", "venv/y.py", "own/pyvenv.cfg", "own/z.py", "notes.txt"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"# {name}\n")
    return tmp_path


def test_the_code_of_a_folder(project):
    first = code(project)
    assert (first.files, first.commit) == (2, "")
    (project / "notes.txt").write_text("other")
    (project / "venv/y.py").write_text("other")
    assert code(project) == first
    (project / "model/net.py").write_text("# model/net.py \n")
    assert code(project).fingerprint != first.fingerprint


def test_a_repository_has_a_commit(project):
    def git(*words):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.invalid")
        return subprocess.run(
            ["git", *identity, *words], cwd=project, capture_output=True, text=True, check=True
        ).stdout

    git("init", "-q")
    assert code(project).commit == ""
    git("add", "train.py")
    git("commit", "-qm", "first")
    head = git("rev-parse", "HEAD").strip()
    seen = code(project / "model")
    assert (seen.commit, seen.folder) == (head, str(project))
    git("pack-refs", "--all")
    assert code(project).commit == head
    git("worktree", "add", "-q", "tree")
    assert code(project / "tree").commit == head
    git("checkout", "-q", "--detach")
    assert code(project).commit == head


def test_what_is_too_large_has_no_fingerprint(project, monkeypatch):
    monkeypatch.setattr(source_tree, "MOST_FILES", 1)
    assert code(project).fingerprint == ""
    assert code(project).why_not == "there is too much to be read in passing"
    assert code(project / ".hidden").files == 1


def test_a_folder_without_code(tmp_path):
    assert code(tmp_path).why_not == "no Python files are here"


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's folders are made by root")
def test_folders_that_are_closed_are_left_out():
    script = (
        "import os, sys; from pathlib import Path; from holdfast.facts.source_tree import code\n"
        "os.setgid(65534); os.setuid(65534); print(code(Path(sys.argv[1])).files)"
    )
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        project.chmod(0o755)
        (project / "closed").mkdir(mode=0o700)
        for name in ("train.py", "closed/x.py"):
            (project / name).write_text("")
        done = subprocess.run([sys.executable, "-c", script, folder], capture_output=True, text=True, check=False)
    assert done.stdout == "1\n", done.stderr
