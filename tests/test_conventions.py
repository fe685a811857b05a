"""Conventions checked in the source: sizes, names, imports, docstrings, language, and packaging."""

from __future__ import annotations

import ast
import gc
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from functools import cache
from pathlib import Path

import pytest

import holdfast
from tests import language

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "holdfast"
FILES = sorted(PACKAGE.rglob("*.py"))

LINES = 500
FUNCTION_LINES = 60
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "shared"}

#: Files above the limit, and why. An entry that is no longer needed fails the test.
LONG_FILES: dict[str, str] = {}

#: Functions above the limit, and why.
LONG_FUNCTIONS = {
    "cli/check_hosts.py: _show": "one parameter per line",
    "cli/lint.py: command": "one parameter per line",
    "plan/generate/fsdp2.py: fsdp2_settings": "one line per setting",
    "plan/generate/fsdp2.py: read_fsdp2": "one line per setting",
    "plan/memory/peaks.py: transient_memory": "one formula per moment of a step",
    "plan/request/mixed.py: plan_mixed_cluster": "one sequence of steps",
    "plan/step_time/submodel_time.py: estimate_submodels_step_time": "one term per part of a step",
    "plan/step_time/traffic.py: list_calls": "one entry per call of a step",
    "training/collectives/reduce.py: all_reduce": "parameters and their documentation",
}

#: Files other than settings.py that may access the environment, and why. Each must still be needed.
MAY_ACCESS_ENVIRONMENT: dict[str, str] = {}


@cache
def nodes():
    """Return the nodes of all files: parsed on first use, not by every test worker at import."""
    gc.disable()  # takes a third of the time otherwise, as the trees grow
    found = {path: language.nodes_of(path) for path in FILES}
    gc.freeze()
    gc.enable()
    return found


def trees():
    """Return the syntax trees of all files."""
    return {path: each[0] for path, each in nodes().items()}


def relative(path):
    return path.relative_to(PACKAGE).as_posix()


def functions():
    """Yield each function with its file."""
    for path, each in nodes().items():
        for node in each:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


def accesses_environment(nodes):
    """Return whether the module uses os.environ, os.getenv and the like, however imported."""
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    return any(
        (
            isinstance(node, ast.Attribute)
            and node.attr in names
            and getattr(node.value, "id", None) == "os"
        )
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "os"
            and names & {alias.name for alias in node.names}
        )
        for node in nodes
    )


def undocumented(node, prefix=""):
    """Yield public names without docstring; members of private names are private too."""
    for child in node.body:
        if isinstance(
            child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and not child.name.startswith("_"):
            overload = any(
                getattr(decorator, "id", "") in {"overload", "override"}
                for decorator in child.decorator_list
            )
            if not ast.get_docstring(child) and not overload:
                yield prefix + child.name
            if isinstance(child, ast.ClassDef):
                yield from undocumented(child, f"{prefix}{child.name}.")


def test_no_file_is_too_long():
    long = {relative(path) for path in FILES if len(path.read_text().splitlines()) > LINES}
    assert long == set(LONG_FILES)


def test_no_function_is_too_long():
    long = {
        f"{relative(path)}: {node.name}"
        for path, node in functions()
        if node.end_lineno - node.lineno + 1 > FUNCTION_LINES
    }
    assert long == set(LONG_FUNCTIONS)


def test_no_module_has_a_vague_name():
    assert [
        relative(path)
        for path in FILES
        if VAGUE_NAMES & {path.stem, *path.relative_to(PACKAGE).parent.parts}
    ] == []


def test_only_settings_accesses_the_environment():
    accessing = {relative(path) for path, each in nodes().items() if accesses_environment(each)}
    assert accessing == {"core/settings.py", *MAY_ACCESS_ENVIRONMENT}


@pytest.mark.parametrize(
    "source", ["import os\nos.environ['A']", "import os\nos.getenv('A')", "from os import environ"]
)
def test_environment_access_is_detected(source):
    assert accesses_environment(ast.walk(ast.parse(source)))


#: Class names that several modules have, and why.
SHARED_CLASS_NAMES = {"HoldfastCallback": "the name that users of each framework import"}


def test_class_names_are_unique():
    modules: dict[str, list[str]] = {}
    for path, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                modules.setdefault(node.name, []).append(relative(path))
    repeated = {name: paths for name, paths in modules.items() if len(paths) > 1}
    assert repeated.keys() == SHARED_CLASS_NAMES.keys(), repeated


def own_deferred_imports(path):
    """Yield each import of holdfast below module level, with the line before it."""
    lines = path.read_text().splitlines()
    module, *others = nodes()[path]
    top = {id(node) for node in module.body}
    for node in others:
        if (
            isinstance(node, ast.ImportFrom)
            and (node.level or (node.module or "").startswith("holdfast"))
            and id(node) not in top
        ):
            yield lines[node.lineno - 2], lines[node.lineno - 1]


def test_every_deferred_import_of_holdfast_has_a_reason():
    assert [
        f"{relative(path)}: {line.strip()}"
        for path in FILES
        if path.relative_to(PACKAGE).parts[0] != "cli"
        for before, line in own_deferred_imports(path)
        if "holdfast" not in before  # the rest of a block whose first line has the reason
        and "TYPE_CHECKING" not in before
        and " - " not in line
        and not before.strip().startswith("#")
    ] == []


def test_every_module_has_a_docstring():
    assert [
        relative(path)
        for path, tree in trees().items()
        if relative(path) and not ast.get_docstring(tree)
    ] == []


def test_every_public_name_is_documented():
    assert [
        f"{relative(path)}: {name}" for path, tree in trees().items() for name in undocumented(tree)
    ] == []


def test_every_function_has_a_return_annotation():
    assert [
        f"{relative(path)}: {node.name}" for path, node in functions() if node.returns is None
    ] == []


# Language: tests/language.py lists the occurrences


def test_no_banned_words():
    assert language.count_per_package() == {}, "run: python tests/language.py"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a wall of rooms", ["room", "wall"]),
        ("CPU share of the wall time", []),
        ("Nobody waits for ever; a time-out", ["nobody", "time-out", "for ever"]),
        ("the given path was not found", []),
    ],
)
def test_banned_words_in_prose(text, words):
    assert list(language.find_in_prose(text)) == words


def test_banned_words_in_identifiers():
    assert [
        list(language.find_in_identifier(name)) for name in ("_given", "HostStory", "wallet")
    ] == [
        ["given"],
        ["story"],
        [],
    ]


# Import contracts


def lint_imports(folder):
    """Check the contracts against the package in ``folder``."""
    program = Path(sys.executable).with_name("lint-imports")
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [program, "--no-logo", "--no-cache", "--config", ROOT / "pyproject.toml"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_imports_follow_the_layers():
    done = lint_imports(ROOT / "src")
    assert done.returncode == 0, done.stdout


#: A file, an import that a contract forbids there, and the contract with what lint-imports reports.
FORBIDDEN_IMPORTS = [
    (
        "core/findings.py",
        "import holdfast.cli",
        "Imports point down",
        "core.findings -> holdfast.cli",
    ),
    (
        "watcher/__init__.py",
        "from holdfast import launcher",
        "Imports point down",
        "watcher -> holdfast.launcher",
    ),
    (
        "lint/__init__.py",
        "from holdfast import plan",
        "Capability packages do not import each other",
        "lint -> holdfast.plan",
    ),
    ("core/settings.py", "import torch", "torch is imported in training", "core.settings -> torch"),
    ("plan/rules.py", "import torch", "torch is imported in training", "plan.rules -> torch"),
    ("lint/rules/rule.py", "import time", "Rules are pure", "lint.rules.rule -> time"),
    (
        "host/cgroups.py",
        "import holdfast.host.memory_kills",
        "No cycles among siblings",
        "No cycles are allowed in holdfast.host.",
    ),
]


@pytest.mark.slow
def test_upward_imports_are_detected_even_if_late_or_for_types(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "holdfast", ignore=shutil.ignore_patterns("__pycache__"))
    for file, line, _, _ in FORBIDDEN_IMPORTS:
        with (tmp_path / "holdfast" / file).open("a") as source:
            source.write(
                "\nfrom typing import TYPE_CHECKING\n"
                f"if TYPE_CHECKING:\n    {line}\n\ndef late() -> None:\n    {line}\n"
            )
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    report = done.stdout.partition("Broken contracts")[2]
    for _, _, contract, reported in FORBIDDEN_IMPORTS:
        section = re.split(r"\n-{9,}\n", report.partition(f"\n{contract}")[2])[1]
        both_lines = r" \(l\.\d+, l\.\d+\)" if "->" in reported else ""
        assert re.search(rf"{re.escape(reported)}{both_lines}", section), (contract, done.stdout)


# Packaging


@pytest.mark.slow
def test_the_wheel_contains_every_file_of_the_package(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    (wheel,) = tmp_path.glob("holdfast-*.whl")
    packed = {name.removeprefix("holdfast/") for name in zipfile.ZipFile(wheel).namelist()}
    expected = {
        relative(path)
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in packed if ".dist-info/" not in name} == expected
    sources = {f"recorder/native/{name}" for name in ("trace.hpp", "recorder.cpp", "sites.hpp")}
    assert sources <= packed  # sources of the native recorder
    assert {f"holdfast-{holdfast.__version__}.dist-info/licenses/LICENSE"} <= packed


def test_every_dependency_is_documented():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    page = (ROOT / "docs" / "dependencies.md").read_text()
    assert [
        name for line in requirements if (name := re.split(r"[<>=]", line)[0]) not in page
    ] == []


def test_torch_is_not_a_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    uses_installed_torch = ("torchmetrics>=", "torchdata>=")
    assert [
        line
        for line in lines
        if line.startswith("torch") and not line.startswith(uses_installed_torch)
    ] == []


# Public names


def test_lazy_names_are_listed_and_loadable():
    assert {"step", "phase", "__version__"} <= set(dir(holdfast))
    assert set(holdfast.__all__) <= set(dir(holdfast))
    assert callable(holdfast.step)
    assert callable(holdfast.phase)


def test_an_unknown_name_raises_a_clear_attribute_error():
    with pytest.raises(
        AttributeError,
        match=r"module 'holdfast' has no attribute 'stepp'; it offers .*comm, .*step",
    ):
        holdfast.stepp  # noqa: B018 - the access is what is tested


def test_the_change_log_has_this_version():
    assert f"## [{holdfast.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
