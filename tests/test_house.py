"""The rules of the house, held by looking at the source: sizes, names, imports, docstrings, and what is installed."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "holdfast"
FILES = sorted(PACKAGE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in FILES}

LINES = 400
FUNCTION_LINES = 60
SAY_NOTHING = {"utils", "util", "common", "helpers", "helper", "misc", "shared", "manager"}

#: Files other than settings.py that may touch the environment, and why. Each must still be needed.
MAY_TOUCH_THE_ENVIRONMENT: dict[str, str] = {}


def shown(path):
    return path.relative_to(PACKAGE).as_posix()


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def touches_environment(tree):
    """True where the module names os.environ, os.getenv and the like, however it imported them."""
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    return any(
        (isinstance(node, ast.Attribute) and node.attr in names and getattr(node.value, "id", None) == "os")
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and names & {alias.name for alias in node.names})
        for node in ast.walk(tree)
    )


def undocumented(node, where=""):
    """Public names of a module or class that have no docstring; what a private name holds is private too."""
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("_"):
            overload = any(getattr(mark, "id", "") in {"overload", "override"} for mark in child.decorator_list)
            if not ast.get_docstring(child) and not overload:
                yield where + child.name
            if isinstance(child, ast.ClassDef):
                yield from undocumented(child, f"{where}{child.name}.")


def test_no_file_is_too_long():
    assert {shown(path): n for path in FILES if (n := len(path.read_text().splitlines())) > LINES} == {}


def test_no_function_is_too_long():
    found = {
        f"{shown(path)}: {node.name}": node.end_lineno - node.lineno + 1
        for path, tree in TREES.items()
        for node in functions(tree)
        if node.end_lineno - node.lineno + 1 > FUNCTION_LINES
    }
    assert found == {}


def test_no_module_has_a_name_that_says_nothing():
    assert [shown(path) for path in FILES if SAY_NOTHING & {path.stem, *path.relative_to(PACKAGE).parent.parts}] == []


def test_only_the_settings_touch_the_environment():
    found = {shown(path) for path, tree in TREES.items() if touches_environment(tree)}
    assert found == {"settings.py", *MAY_TOUCH_THE_ENVIRONMENT}


@pytest.mark.parametrize(
    "source", ["import os\nos.environ['A']", "import os\nos.getenv('A')", "from os import environ"]
)
def test_that_check_can_fail(source):
    assert touches_environment(ast.parse(source))


def test_every_module_says_what_it_is():
    assert [shown(path) for path, tree in TREES.items() if shown(path) and not ast.get_docstring(tree)] == []


def test_every_public_name_is_documented():
    assert [f"{shown(path)}: {name}" for path, tree in TREES.items() for name in undocumented(tree)] == []


def test_every_function_says_what_it_returns():
    assert [
        f"{shown(path)}: {node.name}"
        for path, tree in TREES.items()
        for node in functions(tree)
        if node.returns is None
    ] == []


# Imports point down


def lint_imports(folder):
    """Check the contracts against the package in ``folder``."""
    program = Path(sys.executable).with_name("lint-imports")
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [program, "--no-logo", "--no-cache", "--config", ROOT / "pyproject.toml"],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_imports_point_down():
    done = lint_imports(ROOT / "src")
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("findings.py", "    import holdfast.cli", "Imports point down"),
        ("rules/__init__.py", "    from holdfast import actions", "Imports point down"),
        ("settings.py", "    import torch", "Only the runtime knows torch"),
    ],
)
def test_an_import_that_points_up_is_found_even_if_for_types_or_late(file, line, contract, tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "holdfast", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "holdfast" / file).open("a") as source:
        source.write(f"\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n{line}\n\ndef late() -> None:\n{line}\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{contract} BROKEN" in done.stdout


# What is installed


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    (wheel,) = tmp_path.glob("holdfast-*.whl")
    inside = {name.removeprefix("holdfast/") for name in zipfile.ZipFile(wheel).namelist()}
    beside = {shown(path) for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {name for name in inside if ".dist-info/" not in name} == beside
    sources = {f"runtime/recorder/native/{name}" for name in ("box.hpp", "recorder.cpp", "sites.hpp")}
    assert sources <= inside  # what the recorder is compiled from
    assert {f"holdfast-{holdfast.__version__}.dist-info/licenses/LICENSE"} <= inside


def test_every_dependency_is_argued_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    page = (ROOT / "docs" / "dependencies.md").read_text()
    assert [name for line in wanted if (name := re.split(r"[<>=]", line)[0]) not in page] == []


def test_torch_is_no_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(name for extra in project["optional-dependencies"].values() for name in extra)]
    takes_what_is_there = ("torchmetrics>=", "torchdata>=")
    assert [line for line in lines if line.startswith("torch") and not line.startswith(takes_what_is_there)] == []


# The face of the package


def test_the_lazy_names_are_listed_and_found():
    assert {"step", "phase", "__version__"} <= set(dir(holdfast))
    assert set(holdfast.__all__) <= set(dir(holdfast))
    assert callable(holdfast.step)
    assert callable(holdfast.phase)


def test_an_unknown_name_is_a_clear_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'holdfast' has no attribute 'stepp'; it offers .*comm, .*step"):
        holdfast.stepp  # noqa: B018 - the access is what is tested


def test_the_change_log_knows_this_version():
    assert f"## [{holdfast.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
