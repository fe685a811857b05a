"""Collection of a program's files by its imports."""

from __future__ import annotations

import os
import time

import pytest

from holdfast.lint.sources import program_files


@pytest.fixture
def tree(tmp_path):
    files = {
        "main.py": "import torch, helper as h\nfrom pkg.sub import (one,\n two,\n)\nif h:\n  from other import *\n",
        "helper.py": "import json\n",
        "other.py": "import main\nimport nothing.of.that.name\nfrom . import helper\n",
        "pkg/__init__.py": "",
        "pkg/sub/__init__.py": "from ..near import x\n",
        "pkg/sub/one.py": "from ....... import too_far\n",
        "pkg/near.py": "",
        "pkg/unused.py": "",
        "site-packages/installed.py": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def names(folder, *entries, before=None):
    collected = program_files.collect_program_files(
        [folder / entry for entry in entries], time.time() + 9 if before is None else before
    )
    return {path.relative_to(folder).as_posix() for path in collected}


def test_only_imports_are_followed(tree):
    assert names(tree, "main.py") == {
        "main.py",
        "helper.py",
        "other.py",
        "pkg/__init__.py",
        "pkg/sub/__init__.py",
        "pkg/sub/one.py",
        "pkg/near.py",
    }


def test_package_imports_are_resolved(tree):
    (tree / "pkg" / "entry.py").write_text("from pkg.unused import y\n")
    assert names(tree, "pkg/entry.py") == {"pkg/entry.py", "pkg/__init__.py", "pkg/unused.py"}


def test_files_changed_since_the_job_started_are_left_out(tree):
    os.utime(tree / "helper.py", (2e9, 2e9))
    assert "helper.py" not in names(tree, "main.py", before=1.9e9)


def test_missing_and_too_large_files_are_skipped(tree, monkeypatch):
    assert names(tree, "gone.py", "pkg") == set()
    monkeypatch.setattr(program_files, "MAX_FILES", 2)
    assert names(tree, "main.py") == {"main.py", "helper.py"}
