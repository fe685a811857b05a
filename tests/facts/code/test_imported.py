"""Which files a program is made of."""

from __future__ import annotations

import os
import time

import pytest

from holdfast.facts.code import imported


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
    }  # fmt: skip
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def names(folder, *entries, before=None):
    found = imported.program([folder / each for each in entries], time.time() + 9 if before is None else before)
    return {path.relative_to(folder).as_posix() for path in found}


def test_what_is_imported_is_followed_and_nothing_else(tree):
    assert names(tree, "main.py") == {
        "main.py", "helper.py", "other.py", "pkg/__init__.py", "pkg/sub/__init__.py", "pkg/sub/one.py", "pkg/near.py"
    }  # fmt: skip


def test_a_file_in_a_package_finds_its_neighbours_by_the_package_name(tree):
    (tree / "pkg" / "entry.py").write_text("from pkg.unused import y\n")
    assert names(tree, "pkg/entry.py") == {"pkg/entry.py", "pkg/__init__.py", "pkg/unused.py"}


def test_what_changed_since_the_job_began_is_left_out(tree):
    os.utime(tree / "helper.py", (2e9, 2e9))
    assert "helper.py" not in names(tree, "main.py", before=1.9e9)


def test_what_is_not_there_or_too_large_is_passed_over(tree, monkeypatch):
    assert names(tree, "gone.py", "pkg") == set()
    monkeypatch.setattr(imported, "MOST_FILES", 2)
    assert names(tree, "main.py") == {"main.py", "helper.py"}
