"""What people's folders hold besides Python 3: it is passed over, said, and the rest is read."""

import os
from pathlib import Path

import pytest

from holdfast.facts.code import reading

HOSTILE = {
    "two.py": (b"print 'hello'\n", "is no Python 3"),
    "broken.py": (b"def f(:\n", "is no Python 3"),
    "null.py": (b"x = 1\0\n", "null bytes"),
    "encoding.py": (b"# -*- coding: nonsense-8 -*-\nx = 1\n", "no Python 3: unknown encoding"),
    "deep.py": (b"x = " + b"(" * 5000 + b")" * 5000 + b"\n", "no Python 3: too many nested"),
    "signs.py": (b"x = " + b"-" * 10_000 + b"1\n", "nested too deeply"),
    "latin.py": ("x = 'é'\n".encode("latin-1"), "it is no Python 3: invalid or missing encoding"),
    "utf16.py": ("x = 'é'\n".encode("utf-16"), "UTF-16"),
    "line.py": (b"x = '" + b"a" * reading.MOST_BYTES + b"'\n", "4 MiB"),
    "large.py": (b"#" * (reading.MOST_BYTES + 1), "4 MiB"),
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "good.py").write_text("x = 1\n")
    return tmp_path


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_program_is_passed_over_and_said(name, folder):
    content, why = HOSTILE[name]
    (folder / name).write_bytes(content)
    read = reading.read([folder])
    assert list(read.modules) == ["good"]
    (passed,) = read.passed
    assert passed.file == str(folder / name)
    assert why in passed.why
    assert "\n" not in passed.why


def test_links_in_a_circle_end_and_files_count_once(folder):
    (folder / "below").mkdir()
    (folder / "below" / "up").symlink_to(folder, target_is_directory=True)
    (folder / "again.py").symlink_to(folder / "good.py")
    (folder / "nowhere.py").symlink_to(folder / "gone")
    (folder / "loop.py").symlink_to(folder / "loop.py")
    os.mkfifo(folder / "pipe.py")
    read = reading.read([folder, folder / "good.py", folder / "missing.py"])
    assert len(read.modules) == 1
    assert {each.why.split(":")[0] for each in read.passed} <= {"it is no file", "there is no such file"}
    assert len(read.passed) == 4


def test_a_path_in_a_folder_that_is_closed_is_said(folder, monkeypatch):
    whole = Path.stat

    def asked(path, **named):
        if path.name == "inner.py":
            raise PermissionError(13, "Permission denied", str(path))
        return whole(path, **named)

    monkeypatch.setattr(Path, "stat", asked)
    read = reading.read([folder / "closed" / "inner.py", folder])
    assert [(each.file, each.why) for each in read.passed] == [(f"{folder}/closed/inner.py", "permission denied")]
    assert list(read.modules) == ["good"]


def test_an_encoding_that_a_file_names_is_obeyed(folder):
    (folder / "latin.py").write_bytes("# -*- coding: latin-1 -*-\nname = 'é'\n".encode("latin-1"))
    read = reading.read([folder / "latin.py"])
    assert not read.passed
    assert read.modules["latin"].lines[1] == "name = 'é'"


def test_modules_have_the_names_by_which_they_are_imported(tmp_path):
    for path in ("one/main.py", "two/main.py", "pkg/__init__.py", "pkg/inner/__init__.py", "pkg/inner/leaf.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    read = reading.read([tmp_path])
    assert {"pkg", "pkg.inner", "pkg.inner.leaf", "main"} < set(read.modules)
    assert len(read.modules) == 5


def test_folders_of_others_are_not_entered(tmp_path):
    for folder in (".git", "venv", "__pycache__", "node_modules"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "module.py").write_text("")
    assert not reading.read([tmp_path]).modules
