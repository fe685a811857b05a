"""Files that are not Python 3 are skipped with a reason, and the rest is analyzed."""

import os
from pathlib import Path

import pytest

from holdfast.lint.sources import files

HOSTILE = {
    "two.py": (b"print 'hello'\n", "SyntaxError"),
    "broken.py": (b"def f(:\n", "SyntaxError"),
    "null.py": (b"x = 1\0\n", "null bytes"),
    "encoding.py": (b"# -*- coding: nonsense-8 -*-\nx = 1\n", "SyntaxError: unknown encoding"),
    "deep.py": (b"x = " + b"(" * 5000 + b")" * 5000 + b"\n", "SyntaxError: too many nested"),
    "signs.py": (b"x = " + b"-" * 10_000 + b"1\n", "nested too deeply"),
    "latin.py": ("x = 'é'\n".encode("latin-1"), "SyntaxError: invalid or missing encoding"),
    "utf16.py": ("x = 'é'\n".encode("utf-16"), "UTF-16"),
    "line.py": (b"x = '" + b"a" * files.MAX_BYTES + b"'\n", "4 MiB"),
    "large.py": (b"#" * (files.MAX_BYTES + 1), "4 MiB"),
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "good.py").write_text("x = 1\n")
    return tmp_path


@pytest.mark.parametrize("name", HOSTILE)
def test_invalid_files_are_skipped_with_a_reason(name, folder):
    content, why = HOSTILE[name]
    (folder / name).write_bytes(content)
    read = files.read_sources([folder])
    assert list(read.modules) == ["good"]
    (passed,) = read.skipped
    assert passed.file == str(folder / name)
    assert why in passed.why
    assert "\n" not in passed.why


def test_cyclic_links_terminate_and_files_count_once(folder):
    (folder / "below").mkdir()
    (folder / "below" / "up").symlink_to(folder, target_is_directory=True)
    (folder / "again.py").symlink_to(folder / "good.py")
    (folder / "nowhere.py").symlink_to(folder / "gone")
    (folder / "loop.py").symlink_to(folder / "loop.py")
    os.mkfifo(folder / "pipe.py")
    read = files.read_sources([folder, folder / "good.py", folder / "missing.py"])
    assert len(read.modules) == 1
    assert {skipped_file.why.split(":")[0] for skipped_file in read.skipped} <= {
        "not a regular file",
        "no such file",
    }
    assert len(read.skipped) == 4


def test_an_inaccessible_path_is_reported(folder, monkeypatch):
    real_stat = Path.stat

    def denying_stat(path, **named):
        if path.name == "inner.py":
            raise PermissionError(13, "Permission denied", str(path))
        return real_stat(path, **named)

    monkeypatch.setattr(Path, "stat", denying_stat)
    read = files.read_sources([folder / "closed" / "inner.py", folder])
    assert [(skipped_file.file, skipped_file.why) for skipped_file in read.skipped] == [
        (f"{folder}/closed/inner.py", "permission denied")
    ]
    assert list(read.modules) == ["good"]


def test_a_declared_encoding_is_used(folder):
    (folder / "latin.py").write_bytes("# -*- coding: latin-1 -*-\nname = 'é'\n".encode("latin-1"))
    read = files.read_sources([folder / "latin.py"])
    assert not read.skipped
    assert read.modules["latin"].lines[1] == "name = 'é'"


def test_modules_have_their_import_names(tmp_path):
    for path in (
        "one/main.py",
        "two/main.py",
        "pkg/__init__.py",
        "pkg/inner/__init__.py",
        "pkg/inner/leaf.py",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    read = files.read_sources([tmp_path])
    assert {"pkg", "pkg.inner", "pkg.inner.leaf", "main"} < set(read.modules)
    assert len(read.modules) == 5


def test_dependency_folders_are_skipped(tmp_path):
    for folder in (".git", "venv", "__pycache__", "node_modules"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "module.py").write_text("")
    assert not files.read_sources([tmp_path]).modules
