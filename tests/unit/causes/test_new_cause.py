"""The command that writes the file of a new cause."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.causes import all_causes, new_cause
from holdfast.causes.__main__ import main
from holdfast.causes.new_cause import FOLDERS, PLACEHOLDER
from holdfast.core.findings import Cause


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A source checkout without causes, into which the command writes."""
    package = tmp_path / "src/holdfast/causes"
    for folder in FOLDERS:
        (package / folder).mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(new_cause, "__file__", str(package / "new_cause.py"))
    return package


def run(*arguments):
    return CliRunner().invoke(main, ["new", *arguments])


def load(path: Path) -> Cause:
    """Return the cause that the file at ``path`` defines."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, path.stem.upper())


def test_writes_a_complete_file_with_the_next_free_code(checkout):
    result = run("clock-jumped", "--family", "sync")
    assert result.exit_code == 0
    cause = load(checkout / "sync/clock_jumped.py")
    last = max(known.code for known in all_causes() if known.family == "SYNC")
    assert cause.name == "clock-jumped"
    assert cause.code == f"SYNC{int(last[4:]) + 1:03}"
    assert cause.remedies
    (signal,) = cause.signals
    assert (signal.patterns, signal.examples) != ((), ())
    assert PLACEHOLDER in cause.summary


@pytest.mark.usefixtures("checkout")
def test_prints_the_next_steps():
    steps = run("clock-jumped", "--family", "sync").stdout
    assert steps.startswith("Wrote src/holdfast/causes/sync/clock_jumped.py (SYNC")
    for step in (
        PLACEHOLDER,
        "python docs/generate.py",
        "pytest tests/unit/causes",
        "holdfast explain",
    ):
        assert step in steps
    assert "Record the fault" not in steps


def test_a_cause_that_needs_a_gpu_is_tested_with_recorded_output(checkout):
    steps = run("link-flaps", "--family", "gpu", "--gpu-only").stdout
    assert "1. Record the fault" in steps
    assert "tests/unit/host/gpus/recorded.py" in steps
    assert "3. Replace every PLACEHOLDER" in steps
    assert "recorded from real hardware" in (checkout / "gpu/link_flaps.py").read_text()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Clock_Jumped", "not written like-this"),
        ("add-a-barrier", "names a fix"),
        ("straggler", "the catalogue has a cause named"),
    ],
)
def test_a_bad_name_is_refused(checkout, name, message):
    result = run(name, "--family", "sync")
    assert result.exit_code == 2
    assert message in result.stderr
    assert not list(checkout.glob("sync/*"))


def test_an_installed_copy_is_refused(checkout):
    shutil.rmtree(checkout)
    (checkout.parents[2] / "pyproject.toml").unlink()
    result = run("clock-jumped", "--family", "sync")
    assert result.exit_code == 2
    assert "not in a source checkout" in result.stderr


def test_every_family_has_a_folder():
    assert {cause.family for cause in all_causes()} == set(FOLDERS.values())
    files = Path(new_cause.__file__).parent.glob("*/__init__.py")
    assert {file.parent.name for file in files} == set(FOLDERS)
